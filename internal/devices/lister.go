package devices

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"time"

	"connectrpc.com/connect"

	"github.com/berth-net/berth/api"
	"github.com/berth-net/berth/internal/patience"
	"github.com/berth-net/berth/internal/root"
)

// ErrAway says that the kubelet said nothing that counts: it does not answer, not in time, or does not know the pod, as may be after its
// start. The same question may succeed later.
var ErrAway = errors.New("the kubelet does not say which devices the pod has")

// Within is how long the kubelet may take to answer, all tries together.
const Within = 10 * time.Second

// mostBytes is the largest answer, as the kubelet's own client has it.
const mostBytes = 16 << 20

// The kubelet answers 100 questions of all askers in a second, and 10 at once.
const (
	firstPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

// Socket is the socket of the kubelet's pod resources, unless the kubelet has another --root-dir.
func Socket(d root.Dir) string {
	return filepath.Join(string(d), "var/lib/kubelet/pod-resources/kubelet.sock")
}

// Lister asks the kubelet which devices pods have: the service PodResourcesLister of
// https://github.com/kubernetes/kubelet/blob/v0.36.3/pkg/apis/podresources/v1/api.proto. It keeps no answers and no connections. Its methods may
// be called at once.
type Lister struct {
	socket    string
	within    time.Duration
	get, list *connect.Client[message, message]
}

// NewLister returns a lister that asks the kubelet behind a socket.
func NewLister(socket string) *Lister {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{
		Protocols:         protocols,
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	method := func(name string) *connect.Client[message, message] {
		return connect.NewClient[message, message](client, "http://kubelet/v1.PodResourcesLister/"+name,
			connect.WithGRPC(), connect.WithCodec(codec{}), connect.WithReadMaxBytes(mostBytes))
	}
	return &Lister{socket, Within, method("Get"), method("List")}
}

// Devices returns the IDs of the devices that the containers of a pod have, by resource, in the order of the kubelet's answer. Dynamic
// resources are among them, by the claim's name, as with Multus.
//
// The kubelet keeps a resource's devices in no order, so that two answers may differ in it: the networks of a pod take their devices from
// one answer.
//
// The error is ErrAway if the same question may succeed later, also if the deadline of ctx has passed.
func (l *Lister) Devices(ctx context.Context, pod api.Pod) (map[string][]string, error) {
	bounded, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	has, err := l.devices(bounded, pod)
	if err == nil {
		return has, nil
	}
	switch {
	case ctx.Err() == context.Canceled:
		err = fmt.Errorf("%w: %w", ctx.Err(), err) // the error itself need not say so: the connection breaks at the same time
	case isAway(err):
		err = fmt.Errorf("%w: %w", ErrAway, err)
	}
	return nil, fmt.Errorf("asking the kubelet at %s for the devices of pod %.300s/%.300s: %w", l.socket, pod.Namespace, pod.Name, err)
}

func (l *Lister) devices(ctx context.Context, pod api.Pod) (map[string][]string, error) {
	answer, err := ask(ctx, l.get, getRequest(pod))
	list := hasNoGet(err)
	if list {
		answer, err = ask(ctx, l.list, nil)
	}
	if err != nil {
		return nil, err
	}
	return parse(answer, pod, list)
}

// ask makes a call, again and again if the kubelet says that it was asked too often.
func ask(ctx context.Context, client *connect.Client[message, message], request message) (message, error) {
	for n := 1; ; n++ {
		answer, err := client.CallUnary(ctx, connect.NewRequest(&request))
		if err == nil {
			return *answer.Msg, nil
		}
		if !connect.IsWireError(err) || connect.CodeOf(err) != connect.CodeResourceExhausted {
			return nil, err
		}
		pause := time.NewTimer(patience.Backoff(firstPause, mostPause, n))
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
		}
	}
}

// hasNoGet reports whether a kubelet's answer to Get is a reason to try List: kubelets before 1.27 have no Get, and others have it switched
// off (feature gate KubeletPodResourcesGet). These, and those that do not know a pod, answer with a code that says nothing.
func hasNoGet(err error) bool {
	if !connect.IsWireError(err) {
		return false
	}
	code := connect.CodeOf(err)
	return code == connect.CodeUnimplemented || code == connect.CodeUnknown
}

// isAway reports whether the same question may have an answer later. That is so if there is none, however the connection broke; an answer
// that is too large or cannot be read is one.
func isAway(err error) bool {
	if errors.Is(err, errUnknownPod) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	if e := new(connect.Error); !errors.As(err, &e) {
		return false
	}
	code := connect.CodeOf(err)
	if !connect.IsWireError(err) {
		return code != connect.CodeResourceExhausted
	}
	return code == connect.CodeUnavailable || code == connect.CodeDeadlineExceeded || code == connect.CodeCanceled
}
