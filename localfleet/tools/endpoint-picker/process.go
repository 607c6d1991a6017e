package main

import (
	"bytes"
	"io"
	"log"
	"strconv"
	"strings"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	kind "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"
)

const (
	chosenHeader  = "x-gateway-destination-endpoint"
	prefillHeader = "x-prefiller-host-port"
	largestPiece  = 62000
)

var renames = []string{"x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite"}

// failure is what a client is told in place of an answer.
type failure struct {
	status     int
	code, text string
}

// exchange is one request. Its answer does not come by here.
type exchange struct {
	picker  *picker
	stream  extproc.ExternalProcessor_ProcessServer
	headers map[string]string
	content bytes.Buffer
	chosen  *choice
	target  string
}

type service struct {
	extproc.UnimplementedExternalProcessorServer
	picker *picker
}

// Process takes one request through its phases.
func (s service) Process(stream extproc.ExternalProcessor_ProcessServer) error {
	e := &exchange{picker: s.picker, stream: stream, headers: map[string]string{}}
	defer func() {
		if e.chosen != nil {
			s.picker.done(e.chosen.server)
		}
	}()
	for {
		message, err := stream.Recv()
		if err == io.EOF || status.Code(err) == codes.Canceled {
			return nil
		}
		if err != nil {
			return err
		}
		ended, err := e.take(message)
		if err != nil || ended {
			return err
		}
	}
}

// take handles one message; it returns whether that was the last one.
func (e *exchange) take(message *extproc.ProcessingRequest) (bool, error) {
	switch said := message.Request.(type) {
	case *extproc.ProcessingRequest_RequestHeaders:
		for _, one := range said.RequestHeaders.GetHeaders().GetHeaders() {
			e.headers[strings.ToLower(one.Key)] = value(one)
		}
		if said.RequestHeaders.EndOfStream {
			return e.sendAnywhere()
		}
		return false, nil // nothing is said before the body is whole
	case *extproc.ProcessingRequest_RequestBody:
		e.content.Write(said.RequestBody.Body)
		if said.RequestBody.EndOfStream {
			return e.sendToBest()
		}
		return false, nil
	default:
		return false, nil
	}
}

// sendAnywhere lets a request without a body go to any server.
func (e *exchange) sendAnywhere() (bool, error) {
	e.picker.store.Lock()
	servers := e.picker.store.all()
	e.picker.store.Unlock()
	if len(servers) == 0 {
		return true, e.refuse(failure{500, "Internal", "no pods available in datastore"})
	}
	return false, e.send(servers[0].address, nil, 0)
}

// sendToBest lets a request go where its body is best answered.
func (e *exchange) sendToBest() (bool, error) {
	asked, err := e.picker.config.parse(e.headers[":path"], e.content.Bytes())
	if err != nil {
		return true, e.refuse(failure{400, "BadRequest", err.Error()})
	}
	for _, name := range renames {
		if e.target == "" {
			e.target = e.headers[name]
		}
	}
	if e.target == "" {
		e.target = asked.model
	}
	if e.target == "" && asked.fields != nil {
		return true, e.refuse(failure{400, "BadRequest", "model not found in request body"})
	}
	chosen, refused := e.picker.schedule(e.target, asked, prefers(e.headers["prefer"], "if-available"))
	if chosen == nil {
		return true, e.refuse(refused)
	}
	e.chosen = chosen
	content, err := asked.packed(e.target)
	if err != nil {
		return true, e.refuse(failure{500, "Internal", err.Error()})
	}
	log.Printf("%s %s: %d bytes for %s to %s", e.headers["x-request-id"], e.headers[":path"], len(content), e.target, chosen.server.address)
	var more []*core.HeaderValueOption
	if e.picker.config.sends && chosen.prefill != nil {
		more = append(more, header(prefillHeader, chosen.prefill.address))
	}
	if err := e.send(chosen.server.address, more, len(content)); err != nil {
		return true, err
	}
	return false, e.sendPieces(content)
}

// send answers the request's headers: where it goes.
func (e *exchange) send(address string, more []*core.HeaderValueOption, size int) error {
	set := append([]*core.HeaderValueOption{header(chosenHeader, address)}, more...)
	if size > 0 {
		set = append(set, header("Content-Length", strconv.Itoa(size)))
	}
	mutation := &extproc.HeaderMutation{SetHeaders: set}
	if e.picker.config.sends && len(more) == 0 {
		mutation.RemoveHeaders = []string{prefillHeader}
	}
	fields, _ := structpb.NewStruct(map[string]any{"envoy.lb": map[string]any{chosenHeader: address}})
	return e.stream.Send(&extproc.ProcessingResponse{
		Response: &extproc.ProcessingResponse_RequestHeaders{RequestHeaders: &extproc.HeadersResponse{
			Response: &extproc.CommonResponse{ClearRouteCache: true, HeaderMutation: mutation},
		}},
		DynamicMetadata: fields,
	})
}

// sendPieces sends a body in pieces that are small enough for Envoy.
func (e *exchange) sendPieces(content []byte) error {
	for first := true; first || len(content) > 0; first = false {
		piece := content[:min(len(content), largestPiece)]
		content = content[len(piece):]
		streamed := &extproc.StreamedBodyResponse{Body: piece, EndOfStream: len(content) == 0}
		mutation := &extproc.BodyMutation{Mutation: &extproc.BodyMutation_StreamedResponse{StreamedResponse: streamed}}
		response := &extproc.BodyResponse{Response: &extproc.CommonResponse{BodyMutation: mutation}}
		body := &extproc.ProcessingResponse_RequestBody{RequestBody: response}
		if err := e.stream.Send(&extproc.ProcessingResponse{Response: body}); err != nil {
			return err
		}
	}
	return nil
}

func (e *exchange) refuse(why failure) error {
	log.Printf("%s %s: %d %s", e.headers["x-request-id"], e.headers[":path"], why.status, why.text)
	return e.stream.Send(&extproc.ProcessingResponse{Response: &extproc.ProcessingResponse_ImmediateResponse{
		ImmediateResponse: &extproc.ImmediateResponse{
			Status: &kind.HttpStatus{Code: kind.StatusCode(why.status)},
			Body:   []byte("inference error: " + why.code + " - " + why.text),
		},
	}})
}

func header(name, text string) *core.HeaderValueOption {
	return &core.HeaderValueOption{Header: &core.HeaderValue{Key: name, RawValue: []byte(text)}}
}

func value(one *core.HeaderValue) string {
	if len(one.RawValue) > 0 {
		return string(one.RawValue)
	}
	return one.Value
}

// prefers tells whether a Prefer header names a preference.
func prefers(text, wanted string) bool {
	for _, one := range strings.Split(text, ",") {
		name, _, _ := strings.Cut(one, ";")
		if strings.EqualFold(strings.TrimSpace(name), wanted) {
			return true
		}
	}
	return false
}
