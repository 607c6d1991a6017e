// endpoint-picker stands in for llm-d's endpoint picker: for each request it tells Envoy which pod takes it.
// docs/stand-ins.md says what it models.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Where an informer may not list its kind the real one ends after two minutes. A fleet's time is a tenth of that.
const syncSeconds = 12
const mostPorts = 8

type flags struct {
	selector, namespace, configFile, configText   string
	targets                                       []int
	port, healthPort, metricsPort                 int
	secure, healthOnPort, authenticated, profiled bool
	refresh                                       time.Duration
}

func readFlags() flags {
	var f flags
	set := pflag.CommandLine
	set.StringVar(&f.selector, "endpoint-selector", "", "labels of the pods that requests may go to: key=value,...")
	set.IntSliceVar(&f.targets, "endpoint-target-ports", nil, "their ports")
	set.StringVar(&f.namespace, "pool-namespace", "", "their namespace")
	set.StringVar(&f.configFile, "config-file", "", "file with an EndpointPickerConfig")
	set.StringVar(&f.configText, "config-text", "", "an EndpointPickerConfig itself")
	set.BoolVar(&f.secure, "secure-serving", true, "speak TLS to Envoy")
	set.IntVar(&f.port, "grpc-port", 9002, "port where Envoy asks")
	set.IntVar(&f.healthPort, "grpc-health-port", 9003, "port where kubelets ask")
	set.IntVar(&f.metricsPort, "metrics-port", 9090, "port of the metrics")
	set.BoolVar(&f.healthOnPort, "health-checking", false, "tell one's health on Envoy's port too")
	set.BoolVar(&f.authenticated, "metrics-endpoint-auth", true, "ask the API server who reads the metrics")
	set.BoolVar(&f.profiled, "enable-pprof", true, "serve profiles beside the metrics")
	set.DurationVar(&f.refresh, "refresh-metrics-interval", 50*time.Millisecond, "how often engines are asked for their metrics")
	// Those below change nothing here.
	set.Bool("tracing", true, "")
	set.Bool("disable-endpoint-subset-filter", false, "")
	set.Duration("refresh-prometheus-metrics-interval", 5*time.Second, "")
	set.Duration("metrics-staleness-threshold", 2*time.Second, "")
	set.String("model-server-metrics-scheme", "http", "")
	set.String("model-server-metrics-path", "/metrics", "")
	set.Int("model-server-metrics-port", 0, "")
	set.Bool("model-server-metrics-https-insecure-skip-verify", true, "")
	set.IntP("v", "v", 2, "")
	set.Bool("zap-devel", true, "")
	for _, name := range []string{"zap-encoder", "zap-log-level", "zap-stacktrace-level", "zap-time-encoding"} {
		set.String(name, "", "")
	}
	pflag.Parse()
	if f.selector == "" {
		log.Fatal("either pool-name or endpoint-selector must be set, and pools are not modelled here")
	}
	if len(f.targets) == 0 || len(f.targets) > mostPorts {
		log.Fatal("endpoint-target-ports should have length from 1 to 8")
	}
	if os.Getenv("POD_NAME") == "" {
		log.Fatal("failed to get environment variable POD_NAME")
	}
	if f.namespace == "" {
		f.namespace = os.Getenv("NAMESPACE")
	}
	if f.namespace == "" {
		f.namespace = "default"
	}
	return f
}

func main() {
	f := readFlags()
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer end()
	config, err := readConfig(f)
	if err != nil {
		log.Fatalf("the configuration cannot be used: %v", err)
	}
	api, err := newAPI()
	if err != nil {
		log.Fatalf("no API server: %v", err)
	}
	p := &picker{flags: f, api: api, config: config, store: newStore(config, f)}
	go p.serveMetrics()
	go p.serveHealth()
	go p.follow(ctx)
	p.serve(ctx)
}

// picker is the whole program's state.
type picker struct {
	flags  flags
	api    *api
	config *config
	store  *store
}

// follow keeps the store at the pods that the API server has, and ends the program where they are not to be had.
func (p *picker) follow(ctx context.Context) {
	pods := &informer{path: "/api/v1/namespaces/" + p.flags.namespace + "/pods", heed: p.store.heedPod, synced: make(chan struct{})}
	go p.api.follow(ctx, pods)
	select {
	case <-pods.synced:
		log.Print("the pods have been listed")
	case <-ctx.Done():
	case <-time.After(syncSeconds * time.Second):
		log.Fatalf("%s could not be listed within %d s", pods.path, syncSeconds)
	}
}
