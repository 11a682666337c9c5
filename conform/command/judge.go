package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-net/berth/conform"
)

// act does what the flags ask for.
func (o *conforming) act(ctx context.Context) error {
	switch {
	case o.list:
		return o.listChecks()
	case o.from != "":
		return o.again()
	}
	return o.judge(ctx)
}

// judge runs the checks, in a process with namespaces of its own, and writes the
// report.
func (o *conforming) judge(ctx context.Context) error {
	if done, code, err := conform.Enter(); done {
		if err == nil && code != 0 {
			return &Failure{Code: code} // the process inside has said why
		}
		return unjudged(err)
	}
	o.Repeat = o.command
	wipe := func() {}
	if isTerminal(o.stderr) {
		o.Progress, wipe = o.overwritten, o.wipe
	} else if o.format == "table" {
		o.Progress = o.lineByLine
	}
	report, err := conform.Run(ctx, o.Options)
	wipe()
	if report != nil {
		report.Expect(o.expected)
	}
	if errors.Is(err, context.Canceled) && report != nil {
		return o.interrupted(report, "interrupted after "+checks(report)+", which left nothing behind")
	}
	if err != nil {
		return unjudged(err)
	}
	return o.conclude(report)
}

// again writes the report of an earlier run, and ends as that run did.
func (o *conforming) again() error {
	report, err := conform.ReadReport(o.from)
	switch {
	case err != nil:
		return unjudged(fmt.Errorf("--from: %w", err))
	case report.Interrupted:
		return o.interrupted(report, "--from "+o.from+": that run was interrupted after "+checks(report))
	}
	return o.conclude(report)
}

// conclude writes a whole report, and returns the error that its results are.
func (o *conforming) conclude(report *conform.Report) error {
	if err := report.Write(o.stdout, o.format, coloured(o.stdout)); err != nil {
		return err
	}
	switch {
	case !report.Judged():
		return unjudged(errors.New("the plugins could not be judged: the report says why"))
	case report.Failed(o.fails):
		return &Failure{Code: 1}
	}
	return nil
}

// unjudged gives an error the exit code for a run that could not judge the plugins.
func unjudged(err error) error {
	if err == nil {
		return nil
	}
	return &Failure{2, err}
}

// interrupted writes the report of a run that was stopped before its last check; the report says that it is not all. interrupted returns the error that
// says so, too.
func (o *conforming) interrupted(report *conform.Report, says string) error {
	if err := report.Write(o.stdout, o.format, coloured(o.stdout)); err != nil {
		return err
	}
	return unjudged(errors.New(says))
}

// checks says how many checks a report has.
func checks(report *conform.Report) string {
	if n := len(report.Results); n != 1 {
		return fmt.Sprintf("%d checks", n)
	}
	return "1 check"
}
