// Command bare is the lowest floor that a plugin written in Go can have: it reads nothing,
// checks nothing, and links nothing of the CNI project. It prints the least that libcni takes
// for a result of ADD.
package main

import "os"

func main() {
	if os.Getenv("CNI_COMMAND") == "ADD" {
		os.Stdout.WriteString(`{"cniVersion": "1.1.0", "ips": [{"address": "192.0.2.2/32"}]}`)
	}
}
