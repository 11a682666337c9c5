package main

func loop(o options, r *report) error { return nil }
