// Command empty does nothing: it shows what it costs to exec a Go program at all.
package main

func main() {}
