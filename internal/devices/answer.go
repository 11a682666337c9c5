package devices

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/berth-net/berth/api"
)

// message is an encoded message.
type message []byte

// codec passes messages on as they are.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(m any) ([]byte, error) { return *m.(*message), nil }

func (codec) Unmarshal(raw []byte, m any) error {
	*m.(*message) = bytes.Clone(raw) // the caller uses raw again
	return nil
}

// The fields of the kubelet's messages that count here, by their numbers in api.proto (k8s.io/kubelet/pkg/apis/podresources/v1).
const (
	getPodName      = 1 // GetPodResourcesRequest
	getPodNamespace = 2

	answerPods = 1 // ListPodResourcesResponse.pod_resources, of which GetPodResourcesResponse has one

	podName       = 1 // PodResources
	podNamespace  = 2
	podContainers = 3

	containerDevices = 2 // ContainerResources
	containerDynamic = 5

	devicesResource = 1 // ContainerDevices
	devicesIDs      = 2

	dynamicClaim     = 2 // DynamicResource
	dynamicResources = 4

	claimCDIDevices = 1 // ClaimResource
	cdiDeviceName   = 1 // CDIDevice
)

// getRequest is the message GetPodResourcesRequest.
func getRequest(pod api.Pod) message {
	m := protowire.AppendTag(nil, getPodName, protowire.BytesType)
	m = protowire.AppendString(m, pod.Name)
	m = protowire.AppendTag(m, getPodNamespace, protowire.BytesType)
	return protowire.AppendString(m, pod.Namespace)
}

var errUnknownPod = errors.New("it does not know the pod")

// parse reads which devices a pod has, by resource, of a GetPodResourcesResponse or, if `list`, of a ListPodResourcesResponse. A device that
// several containers share, as claims allow, counts once.
func parse(answer message, pod api.Pod, list bool) (map[string][]string, error) {
	pods, err := fields(answer, answerPods)
	if err != nil {
		return nil, err
	}
	if !list { // several of a field that is no list are parts of one
		pods = [][]byte{bytes.Join(pods, nil)}
	}
	has, known := devicesOf{}, false
	for _, p := range pods {
		is, err := isOf(p, pod)
		if err != nil {
			return nil, err
		}
		if !is {
			continue
		}
		known = true
		if err := each(p, podContainers, has.readContainer); err != nil {
			return nil, err
		}
	}
	if !known {
		return nil, errUnknownPod
	}
	return has, nil
}

// isOf reports whether a PodResources is of a pod.
func isOf(resources []byte, pod api.Pod) (bool, error) {
	name, err := text(resources, podName)
	if err != nil {
		return false, err
	}
	namespace, err := text(resources, podNamespace)
	return name == pod.Name && namespace == pod.Namespace, err
}

// devicesOf are devices' IDs, by resource.
type devicesOf map[string][]string

func (has devicesOf) readContainer(container []byte) error {
	if err := each(container, containerDevices, has.readDevices); err != nil {
		return err
	}
	return each(container, containerDynamic, has.readDynamic)
}

func (has devicesOf) readDevices(devices []byte) error {
	resource, err := text(devices, devicesResource)
	if err != nil {
		return err
	}
	return each(devices, devicesIDs, func(id []byte) error { return has.add(resource, string(id)) })
}

// readDynamic reads the devices of a claim. A device's ID is what its CDI name, VENDOR/CLASS=ID, ends with.
func (has devicesOf) readDynamic(dynamic []byte) error {
	claim, err := text(dynamic, dynamicClaim)
	if err != nil {
		return err
	}
	return each(dynamic, dynamicResources, func(resource []byte) error {
		return each(resource, claimCDIDevices, func(device []byte) error {
			name, err := text(device, cdiDeviceName)
			if err != nil {
				return err
			}
			_, id, found := strings.Cut(name, "=")
			if !found {
				return fmt.Errorf("its answer has a CDI device %.100q; expected VENDOR/CLASS=ID", name)
			}
			return has.add(claim, id)
		})
	})
}

func (has devicesOf) add(resource, id string) error {
	if id == "" { // Assign would take it for "no device"
		return fmt.Errorf("its answer has a device of %.300q without an ID", resource)
	}
	if !slices.Contains(has[resource], id) {
		has[resource] = append(has[resource], id)
	}
	return nil
}

// each calls f with each value of a field.
func each(m []byte, field protowire.Number, f func([]byte) error) error {
	values, err := fields(m, field)
	for _, v := range values {
		if err == nil {
			err = f(v)
		}
	}
	return err
}

// text returns a field that is a string.
func text(m []byte, field protowire.Number) (string, error) {
	values, err := fields(m, field)
	if len(values) == 0 {
		return "", err
	}
	return string(values[len(values)-1]), err
}

// fields returns the values of a field of a message, which are strings or messages. It skips other fields: later kubelets may have some
// that are not known here.
func fields(m []byte, field protowire.Number) (values [][]byte, err error) {
	for len(m) > 0 {
		number, typ, n := protowire.ConsumeTag(m)
		if n < 0 {
			return nil, unreadable(n)
		}
		m = m[n:]
		if n = protowire.ConsumeFieldValue(number, typ, m); n < 0 {
			return nil, unreadable(n)
		}
		if number == field && typ == protowire.BytesType {
			value, _ := protowire.ConsumeBytes(m)
			values = append(values, value)
		}
		m = m[n:]
	}
	return values, nil
}

func unreadable(n int) error {
	return fmt.Errorf("its answer is no message of pod resources v1: %w", protowire.ParseError(n))
}
