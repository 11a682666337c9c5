// Command ocicni does what CRI-O does with a network, by CRI-O's own library. Each run is a CRI-O that has just been started:
//
//	ocicni CONFDIR CACHEDIR BINDIR status
//	ocicni CONFDIR CACHEDIR BINDIR add ID NETNS     attaches the pod default/ID, and prints the result
//	ocicni CONFDIR CACHEDIR BINDIR del ID NETNS
//	ocicni CONFDIR CACHEDIR BINDIR gc [ID]...       these pods are the ones that CRI-O could restore
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/cri-o/ocicni/pkg/ocicni"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "ocicni:", err)
		os.Exit(1)
	}
}

func pod(id, netns string) ocicni.PodNetwork {
	return ocicni.PodNetwork{Namespace: "default", Name: id, ID: id, UID: "uid-" + id, NetNS: netns}
}

func run(args []string) error {
	if len(args) < 4 {
		return errors.New("expected CONFDIR CACHEDIR BINDIR VERB")
	}
	plugin, err := ocicni.InitCNINoInotify("", args[0], args[1], args[2])
	if err != nil {
		return err
	}
	defer plugin.Shutdown()
	ctx, verb, args := context.Background(), args[3], args[4:]
	switch {
	case verb == "status" && len(args) == 0:
		return plugin.StatusWithContext(ctx)
	case verb == "add" && len(args) == 2:
		results, err := plugin.SetUpPodWithContext(ctx, pod(args[0], args[1]))
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(results[0].Result)
	case verb == "del" && len(args) == 2:
		return plugin.TearDownPodWithContext(ctx, pod(args[0], args[1]))
	case verb == "gc":
		var valid []*ocicni.PodNetwork
		for _, id := range args {
			p := pod(id, "")
			valid = append(valid, &p)
		}
		return plugin.GC(ctx, valid)
	}
	return fmt.Errorf("unknown: %s %q", verb, args)
}
