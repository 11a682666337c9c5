package routes

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/cni"
	"github.com/berth-net/berth/internal/daemon/server"
)

var historyParameters = []string{"pod", "container", "address", "at", "until", "since", "limit"}

// history returns the attachments that a request asks for.
func (a *agent) history(r *server.Request) (server.Source, error) {
	f, err := pastFilter(r.Query)
	if err != nil {
		return nil, err
	}
	return pasts{a.verbs.History(f)}, nil
}

// pasts is a reader of a history.
type pasts struct{ api.PastReader }

func (p pasts) Next(context.Context) (any, error) {
	past, err := p.PastReader.Next()
	if err != nil {
		return nil, err
	}
	return api.PastLine{Past: &past}, nil
}

// Last returns the line that ends the answer.
func (p pasts) Last(why error) any {
	end := p.End()
	if !errors.Is(why, io.EOF) {
		end.Error = why.Error()
	}
	return api.PastLine{End: &end}
}

// pastFilter reads the parameters that choose attachments of the history.
func pastFilter(q server.Query) (f api.PastFilter, err error) {
	f.Pod, f.Container = q["pod"], q["container"]
	if e := printable(2*cni.MaxPodName + 1)(f.Pod); e != nil {
		return f, cni.Errorf(cni.CodeEnv, "invalid query parameter pod", "%s", e.Details)
	}
	if f.Container != "" {
		if e := cni.CheckContainerID(f.Container); e != nil {
			return f, cni.Errorf(cni.CodeEnv, "invalid query parameter container", "%s", e.Details)
		}
	}
	if f.Address, err = address(q); err != nil {
		return f, err
	}
	for _, p := range []struct {
		name string
		to   *time.Time
	}{{"at", &f.At}, {"until", &f.Until}, {"since", &f.Since}} {
		if s := q[p.name]; s != "" {
			if *p.to, err = time.Parse(time.RFC3339Nano, s); err != nil {
				return f, server.BadParameter(p.name, s, "a time, such as 2026-01-02T15:04:05Z")
			}
		}
	}
	if s := q["until"]; s != "" && (f.At.IsZero() || !f.Until.After(f.At)) {
		return f, server.BadParameter("until", s, "a time after that of the parameter at")
	}
	if s := q["limit"]; s != "" {
		if f.Limit, err = strconv.Atoi(s); err != nil || f.Limit < 1 {
			return f, server.BadParameter("limit", s, "a number above 0")
		}
	}
	return f, nil
}
