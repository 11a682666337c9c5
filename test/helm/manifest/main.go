// Manifest writes the plain manifests of the chart in a folder into another folder:
//
//	manifest ../../deploy/helm/berth ../../deploy/kubernetes
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/berth-net/berth/test/helm/chart"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: manifest CHART FOLDER")
		os.Exit(2)
	}
	for _, m := range chart.Manifests {
		text, err := m.Text(os.Args[1])
		if err == nil {
			err = os.WriteFile(filepath.Join(os.Args[2], m.File), []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "manifest:", err)
			os.Exit(1)
		}
	}
}
