package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	account    = "/var/run/secrets/kubernetes.io/serviceaccount/"
	retryAfter = time.Second
)

// api is the API server, asked as the pod's service account.
type api struct {
	base   string
	client *http.Client
}

type object struct {
	Metadata struct {
		Namespace, Name, UID, ResourceVersion string
		Labels                                map[string]string
		DeletionTimestamp                     *string
	}
	Spec   json.RawMessage
	Status json.RawMessage
}

// informer is a kind that is listed and then watched.
type informer struct {
	path   string
	heed   func(what string, one object)
	synced chan struct{}
	listed bool
}

// refusal is an answer that is not one.
type refusal struct {
	code int
	text string
}

func (r refusal) Error() string { return fmt.Sprintf("%d %s", r.code, r.text) }

func newAPI() (*api, error) {
	authority, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(authority)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	return &api{"https://" + host, &http.Client{Transport: transport}}, nil
}

// ask returns the answer's body, which whoever asks has to close.
func (a *api) ask(ctx context.Context, method, path string, body any) (io.ReadCloser, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, method, a.base+path, bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Content-Type", "application/json")
	answer, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	if answer.StatusCode >= http.StatusMultipleChoices {
		defer answer.Body.Close()
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1000))
		return nil, refusal{answer.StatusCode, string(text)}
	}
	return answer.Body, nil
}

// read decodes the answer into a value.
func (a *api) read(ctx context.Context, method, path string, body, into any) error {
	answer, err := a.ask(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer answer.Close()
	return json.NewDecoder(answer).Decode(into)
}

// follow lists and watches for ever.
func (a *api) follow(ctx context.Context, one *informer) {
	for ctx.Err() == nil {
		if err := a.followOnce(ctx, one); err != nil && !errors.Is(err, io.EOF) && ctx.Err() == nil {
			log.Printf("%s: %v", one.path, err)
			time.Sleep(retryAfter)
		}
	}
}

func (a *api) followOnce(ctx context.Context, one *informer) error {
	query := url.Values{}
	var list struct {
		Metadata struct{ ResourceVersion string }
		Items    []object
	}
	if err := a.read(ctx, http.MethodGet, one.path+"?"+query.Encode(), nil, &list); err != nil {
		return err
	}
	one.heed("RESET", object{})
	for _, each := range list.Items {
		one.heed("ADDED", each)
	}
	one.heed("LISTED", object{})
	if !one.listed {
		one.listed = true
		close(one.synced)
	}
	query.Set("watch", "true")
	query.Set("resourceVersion", list.Metadata.ResourceVersion)
	stream, err := a.ask(ctx, http.MethodGet, one.path+"?"+query.Encode(), nil)
	if err != nil {
		return err
	}
	defer stream.Close()
	decoder := json.NewDecoder(stream)
	for {
		var event struct {
			Type   string
			Object object
		}
		if err := decoder.Decode(&event); err != nil {
			return err
		}
		if event.Type == "ERROR" {
			return io.EOF // too old: list again
		}
		one.heed(event.Type, event.Object)
	}
}
