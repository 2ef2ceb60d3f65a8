// kstatus reads a JSON list of Kubernetes objects and writes what kstatus, by which Flux and kpt
// judge, makes of each: a JSON list of {"status", "message"}.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	var objects []map[string]interface{}
	verdicts := []verdict{}
	err := json.NewDecoder(os.Stdin).Decode(&objects)
	for _, object := range objects {
		if err != nil {
			break
		}
		var found *status.Result
		found, err = status.Compute(&unstructured.Unstructured{Object: normalize(object)})
		if err == nil {
			verdicts = append(verdicts, verdict{string(found.Status), found.Message})
		}
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(verdicts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// normalize gives whole numbers the type that Kubernetes' own decoder gives them.
func normalize(object map[string]interface{}) map[string]interface{} {
	var copied unstructured.Unstructured
	text, err := json.Marshal(object)
	if err == nil {
		err = copied.UnmarshalJSON(text)
	}
	if err != nil {
		return object
	}
	return copied.Object
}
