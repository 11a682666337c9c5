package kubetest

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
)

// body reads the object of a request: JSON or, of the core group, Kubernetes' protobuf, which clients such as Multus write.
func body(r *http.Request) (o Object, err error) {
	if r.Header.Get("Content-Type") != runtime.ContentTypeProtobuf {
		return o, json.NewDecoder(r.Body).Decode(&o)
	}
	scheme := runtime.NewScheme()
	raw, err := io.ReadAll(r.Body)
	if err = errors.Join(err, corev1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	typed, _, err := protobuf.NewSerializer(scheme, scheme).Decode(raw, nil, nil)
	if err != nil {
		return nil, err
	}
	return asObject(typed), nil
}

// create adds an object (POST).
func (s *Server) create(w http.ResponseWriter, r *http.Request, resource string) {
	o, err := body(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	if s.objects[resource][keyOf(metaOf(o))] != nil {
		s.mu.Unlock()
		refuse(w, http.StatusConflict, metav1.StatusReasonAlreadyExists)
		return
	}
	delete(o, "status")
	s.put(resource, o)
	s.answer(w, resource, o)
}

// update replaces an object's status, or the rest of it (PUT), if the writer has read its newest version. With a pod's status it
// replaces the pod's annotations, as the API server does (podStatusStrategy of Kubernetes' registry keeps the spec and the owners alone).
func (s *Server) update(w http.ResponseWriter, r *http.Request, resource, key, sub string) {
	o, err := body(r)
	if err != nil {
		refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
		return
	}
	s.mu.Lock()
	was := s.objects[resource][key]
	switch {
	case was == nil:
		s.mu.Unlock()
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	case metaOf(o)["resourceVersion"] != metaOf(was)["resourceVersion"]:
		s.mu.Unlock()
		refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
		return
	}
	now := asObject(was)
	for part := range o {
		if (part == "status") == (sub == "status") {
			now[part] = o[part]
		}
	}
	if resource == "pods" && sub == "status" {
		metaOf(now)["annotations"] = metaOf(o)["annotations"]
	}
	s.put(resource, now)
	s.answer(w, resource, now)
}

// answer answers a write, and tells of it. The caller holds s.mu, which answer gives up.
func (s *Server) answer(w http.ResponseWriter, resource string, o Object) {
	out := asObject(o)
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(out)
	if s.Wrote != nil {
		s.Wrote(resource, out)
	}
}

// operators are the resources that an operator makes and deletes.
var operators = []string{"ippools", "nodenetworks"}

// delete takes an object away (DELETE), whatever finalizers it has.
func (s *Server) delete(w http.ResponseWriter, resource, key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.objects[resource][key] == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	s.remove(resource, key)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess})
}
