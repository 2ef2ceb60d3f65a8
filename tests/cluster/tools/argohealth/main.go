// argohealth reads {"config", "objects"}: the data of an argocd-cm ConfigMap and a list of Kubernetes
// objects. It writes what Argo CD makes of each: a JSON list of {"status", "message"}.
//
// The engine is Argo CD's own. The Lua of the ConfigMap is found and run as its package util/lua does
// it, with the same interpreter and the same few libraries open; that package itself would bring all
// of Argo CD and minutes of compiling.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/argoproj/gitops-engine/pkg/health"
	"github.com/gobwas/glob"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

type question struct {
	Config  map[string]string `json:"config"`
	Objects []json.RawMessage `json:"objects"`
}

// overrides maps GROUP/KIND, where * stands for any letters, to a customization.
type overrides map[string]struct {
	HealthLua string `json:"health.lua"`
}

func main() {
	verdicts, err := judge()
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(verdicts)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge() ([]health.HealthStatus, error) {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return nil, err
	}
	var custom overrides
	if err := yaml.Unmarshal([]byte(asked.Config["resource.customizations"]), &custom); err != nil {
		return nil, err
	}
	verdicts := []health.HealthStatus{}
	for _, text := range asked.Objects {
		var object unstructured.Unstructured
		if err := object.UnmarshalJSON(text); err != nil {
			return nil, err
		}
		found, err := health.GetResourceHealth(&object, custom)
		if err != nil {
			return nil, err
		}
		if found == nil {
			found = &health.HealthStatus{Message: "Argo CD has no health check for this kind"}
		}
		verdicts = append(verdicts, *found)
	}
	return verdicts, nil
}

// GetResourceHealth makes the customizations a health.HealthOverride: nil where none is for this kind.
func (custom overrides) GetResourceHealth(object *unstructured.Unstructured) (*health.HealthStatus, error) {
	script, err := custom.script(object)
	if script == "" || err != nil {
		return nil, err
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	// Argo CD opens these, and a part of os; string and math are not there.
	libraries := map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	}
	for name, open := range libraries {
		call := lua.P{Fn: state.NewFunction(open), Protect: true}
		if err := state.CallByParam(call, lua.LString(name)); err != nil {
			return nil, err
		}
	}
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	answer, isTable := state.Get(-1).(*lua.LTable)
	if !isTable {
		return nil, fmt.Errorf("the health check returned a %s, not a table", state.Get(-1).Type())
	}
	return &health.HealthStatus{
		Status:  health.HealthStatusCode(lua.LVAsString(answer.RawGetString("status"))),
		Message: lua.LVAsString(answer.RawGetString("message")),
	}, nil
}

// script finds the health check of an object's kind: by its name, then by a pattern.
func (custom overrides) script(object *unstructured.Unstructured) (string, error) {
	kind := object.GroupVersionKind()
	name := kind.Kind
	if kind.Group != "" {
		name = kind.Group + "/" + kind.Kind
	}
	if exact, found := custom[name]; found {
		return exact.HealthLua, nil
	}
	for pattern, one := range custom {
		matcher, err := glob.Compile(pattern)
		if err != nil {
			return "", err
		}
		if matcher.Match(name) {
			return one.HealthLua, nil
		}
	}
	return "", nil
}

// value turns what JSON holds into Lua's values; a whole number is an int64 here.
func value(state *lua.LState, from interface{}) lua.LValue {
	switch one := from.(type) {
	case bool:
		return lua.LBool(one)
	case float64:
		return lua.LNumber(one)
	case int64:
		return lua.LNumber(one)
	case string:
		return lua.LString(one)
	case []interface{}:
		list := state.CreateTable(len(one), 0)
		for _, item := range one {
			list.Append(value(state, item))
		}
		return list
	case map[string]interface{}:
		table := state.CreateTable(0, len(one))
		for key, item := range one {
			table.RawSetH(lua.LString(key), value(state, item))
		}
		return table
	}
	return lua.LNil
}
