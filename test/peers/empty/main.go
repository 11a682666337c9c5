// Command empty does nothing: what it costs to exec a Go program at all.
package main

func main() {}
