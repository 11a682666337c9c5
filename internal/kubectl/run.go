package kubectl

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
)

// atOnce is how many nodes are asked at once.
const atOnce = 16

// run runs a command of berth on all nodes that it is for.
func (p *plugin) run(ctx context.Context, args []string) error {
	agents, err := p.agents(ctx, args)
	if err != nil {
		return err
	}
	if len(agents) == 1 {
		return p.ended(p.ask(ctx, agents[0], args, p.out, p.errs))
	}
	if isJSON(args) {
		return p.ended(p.object(ctx, agents, args))
	}
	return p.ended(p.lines(ctx, agents, args))
}

func (p *plugin) ended(code int) error {
	if code == 0 {
		return nil
	}
	return exit(code)
}

// isJSON reports whether arguments of berth ask for JSON.
func isJSON(args []string) bool {
	i := slices.Index(args, "-o")
	return i >= 0 && i+1 < len(args) && args[i+1] == "json" || slices.Contains(args, "-ojson") || slices.Contains(args, "-o=json") ||
		slices.Contains(args, "--output=json") || slices.Contains(args, "--output") && slices.Contains(args, "json")
}

// ask runs a command of berth beside an agent, and returns its exit code.
func (p *plugin) ask(ctx context.Context, a agent, args []string, out, errs io.Writer) int {
	if a.pod == "" {
		fmt.Fprintf(errs, "kubectl berth: node %s has no agent that runs (pods with %s in namespace %s)\n", a.node, p.selector, p.namespace)
		return 1
	}
	exec := []string{"exec", "--namespace=" + p.namespace, a.pod, "--container=berthd", "--", "berth"}
	c := p.start(ctx, append(exec, args...)...)
	c.Stdout, c.Stderr = out, errs
	return code(c, errs)
}

// code runs a program and returns its exit code.
func code(c *exec.Cmd, errs io.Writer) int {
	err := c.Run()
	var failed *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failed) && failed.ExitCode() > 0:
		return failed.ExitCode()
	default:
		fmt.Fprintf(errs, "kubectl berth: %v\n", err)
		return 1
	}
}

// each asks all agents, some at once, and returns the greatest exit code.
func each(agents []agent, ask func(i int, a agent) int) (worst int) {
	var all sync.WaitGroup
	places := make(chan struct{}, atOnce)
	codes := make([]int, len(agents))
	for i, a := range agents {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			codes[i] = ask(i, a)
		})
	}
	all.Wait()
	return slices.Max(codes)
}

// lines prints what the agents say, as they say it, each line behind its node's name.
func (p *plugin) lines(ctx context.Context, agents []agent, args []string) int {
	width := 0
	for _, a := range agents {
		width = max(width, len(a.node))
	}
	var mu sync.Mutex
	return each(agents, func(_ int, a agent) int {
		out := &lineWriter{to: p.out, mu: &mu, prefix: fmt.Sprintf("%-*s  ", width, a.node)}
		errs := &lineWriter{to: p.errs, mu: &mu, prefix: out.prefix}
		defer out.flush()
		defer errs.flush()
		return p.ask(ctx, a, args, out, errs)
	})
}

// lineWriter writes whole lines, each behind a prefix.
type lineWriter struct {
	to     io.Writer
	mu     *sync.Mutex // whoever has it may write to to
	prefix string
	rest   []byte // of a line whose end has not come yet
}

func (w *lineWriter) Write(b []byte) (int, error) {
	w.rest = append(w.rest, b...)
	end := bytes.LastIndexByte(w.rest, '\n') + 1
	if end == 0 {
		return len(b), nil
	}
	var text strings.Builder
	for line := range bytes.Lines(w.rest[:end]) {
		text.WriteString(w.prefix)
		text.Write(line)
	}
	w.rest = append(w.rest[:0], w.rest[end:]...)
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, err := io.WriteString(w.to, text.String()); err != nil {
		return 0, err
	}
	return len(b), nil
}

func (w *lineWriter) flush() {
	if len(w.rest) > 0 {
		_, _ = w.Write([]byte{'\n'}) // a reader who has left needs no answer
	}
}

// object prints what the agents say as one JSON object by node: the value that a node has printed; an array of
// them if there are several, as of events.
func (p *plugin) object(ctx context.Context, agents []agent, args []string) int {
	said := make([]json.RawMessage, len(agents))
	var mu sync.Mutex
	worst := each(agents, func(i int, a agent) int {
		var out bytes.Buffer
		errs := &lineWriter{to: p.errs, mu: &mu, prefix: a.node + "  "}
		defer errs.flush()
		code := p.ask(ctx, a, args, &out, errs)
		var err error
		if said[i], err = values(&out); err != nil {
			fmt.Fprintf(errs, "kubectl berth: what the agent says is no JSON: %v\n", err)
			code = max(code, 1)
		}
		return code
	})
	all := map[string]json.RawMessage{}
	for i, a := range agents {
		all[a.node] = said[i]
	}
	out := json.NewEncoder(p.out)
	out.SetIndent("", "  ")
	if err := out.Encode(all); err != nil {
		return max(worst, 1)
	}
	return worst
}

// values reads JSON values: none is null, and several are an array.
func values(r io.Reader) (json.RawMessage, error) {
	in := json.NewDecoder(r)
	var all []json.RawMessage
	for {
		var v json.RawMessage
		err := in.Decode(&v)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	switch len(all) {
	case 0:
		return json.RawMessage("null"), nil
	case 1:
		return all[0], nil
	}
	return json.Marshal(all)
}
