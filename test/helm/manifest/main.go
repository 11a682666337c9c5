// Manifest prints the plain manifest of the chart in a folder: `manifest ../../deploy/helm/berth`.
package main

import (
	"fmt"
	"os"

	"github.com/berth-net/berth/test/helm/chart"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: manifest CHART")
		os.Exit(2)
	}
	r, err := chart.Render(os.Args[1], "kube-system", nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, "manifest:", err)
		os.Exit(1)
	}
	fmt.Print(r.Plain())
}
