// Command celoracle answers what a Kubernetes API server and its allocator make of a DRA selector.
//
// It reads one JSON object per line and writes one per line, in the same order. "accepted" is the verdict of admission
// (the environment for new expressions, the worst-case cost limit and the length limit included); the result is that of
// the allocator, which evaluates what was stored.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apiserver/pkg/cel/environment"
	dracel "k8s.io/dynamic-resource-allocation/cel"
)

type device struct {
	Driver                   string                                 `json:"driver"`
	AllowMultipleAllocations bool                                   `json:"allowMultipleAllocations"`
	Attributes               map[string]resourceapi.DeviceAttribute `json:"attributes"`
	Capacity                 map[string]string                      `json:"capacity"`
}

type question struct {
	Expression string   `json:"expression"`
	Devices    []device `json:"devices"`
}

// outcome of one device: a match, or why it could not be told.
type outcome struct {
	Matches bool   `json:"matches"`
	Error   string `json:"error,omitempty"`
	Cost    uint64 `json:"cost"`
}

type answer struct {
	Accepted     bool      `json:"accepted"`
	CompileError string    `json:"compile_error,omitempty"`
	OutputType   string    `json:"output_type,omitempty"`
	MaxCost      uint64    `json:"max_cost,omitempty"`
	Outcomes     []outcome `json:"outcomes,omitempty"`
}

// The feature gates as Kubernetes 1.36 ships them.
var compiler = dracel.GetCompiler(dracel.Features{EnableConsumableCapacity: true})

func compile(expression string, envType environment.Type) dracel.CompilationResult {
	return compiler.CompileCELExpression(expression, dracel.Options{EnvType: &envType})
}

func evaluate(program dracel.CompilationResult, d device) outcome {
	input := dracel.Device{
		Driver:                   d.Driver,
		AllowMultipleAllocations: &d.AllowMultipleAllocations,
		Attributes:               map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{},
		Capacity:                 map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{},
	}
	for name, attribute := range d.Attributes {
		input.Attributes[resourceapi.QualifiedName(name)] = attribute
	}
	for name, text := range d.Capacity {
		quantity, err := resource.ParseQuantity(text)
		if err != nil {
			return outcome{Error: fmt.Sprintf("capacity %s: %v", name, err)}
		}
		input.Capacity[resourceapi.QualifiedName(name)] = resourceapi.DeviceCapacity{Value: quantity}
	}
	matches, details, err := program.DeviceMatches(context.Background(), input)
	result := outcome{Matches: matches}
	if details != nil && details.ActualCost() != nil {
		result.Cost = *details.ActualCost()
	}
	if err != nil {
		result.Error = err.Error()
	}
	return result
}

func ask(q question) (a answer) {
	defer func() {
		if crash := recover(); crash != nil {
			a = answer{CompileError: fmt.Sprintf("panic: %v", crash)}
		}
	}()
	if len(q.Expression) > resourceapi.CELSelectorExpressionMaxLength {
		return answer{CompileError: "too long"}
	}
	admitted := compile(q.Expression, environment.NewExpressions)
	if admitted.Error != nil {
		return answer{CompileError: admitted.Error.Error()}
	}
	a = answer{
		Accepted:   admitted.MaxCost <= resourceapi.CELSelectorExpressionMaxCost,
		OutputType: admitted.OutputType.String(),
		MaxCost:    admitted.MaxCost,
	}
	if !a.Accepted {
		a.CompileError = "too complex, exceeds cost limit"
	}
	stored := compile(q.Expression, environment.StoredExpressions)
	for _, d := range q.Devices {
		a.Outcomes = append(a.Outcomes, evaluate(stored, d))
	}
	return a
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<26)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for lines.Scan() {
		var q question
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			panic(err)
		}
		if err := encoder.Encode(ask(q)); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
