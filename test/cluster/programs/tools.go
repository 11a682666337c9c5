// Package programs has the programs of a Kubernetes cluster, as tools of a module of its own: test/cluster builds them.
package programs
