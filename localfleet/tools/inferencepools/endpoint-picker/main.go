// endpoint-picker stands in for llm-d's endpoint picker: for each request of an InferencePool it tells Envoy which pod
// takes it. docs/stand-ins.md says what it models.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/pflag"
)

// Where an informer may not list its kind the real one ends after two minutes. A fleet's time is a tenth of that.
const syncSeconds = 12

type flags struct {
	group, namespace, name, configFile, configText, certificate       string
	port, healthPort, metricsPort                                     int
	elect, reload, secure, healthOnPort, authenticated, profiled, any bool
	refresh                                                           time.Duration
}

func readFlags() flags {
	var f flags
	set := pflag.CommandLine
	set.StringVar(&f.group, "pool-group", "inference.networking.k8s.io", "API group of the pool")
	set.StringVar(&f.namespace, "pool-namespace", "", "namespace of the pool")
	set.StringVar(&f.name, "pool-name", "", "name of the pool")
	set.StringVar(&f.configFile, "config-file", "", "file with an EndpointPickerConfig")
	set.StringVar(&f.configText, "config-text", "", "an EndpointPickerConfig itself")
	set.StringVar(&f.certificate, "cert-path", "", "folder with tls.crt and tls.key; without it, one is made")
	set.BoolVar(&f.reload, "enable-cert-reload", false, "read the certificate again when it changes")
	set.BoolVar(&f.secure, "secure-serving", true, "speak TLS to Envoy")
	set.IntVar(&f.port, "grpc-port", 9002, "port where Envoy asks")
	set.IntVar(&f.healthPort, "grpc-health-port", 9003, "port where kubelets ask")
	set.IntVar(&f.metricsPort, "metrics-port", 9090, "port of the metrics")
	set.BoolVar(&f.elect, "ha-enable-leader-election", false, "of several, have one answer")
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
	if f.name == "" {
		log.Fatal("--pool-name must be set")
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
	p := &picker{flags: f, api: api, config: config, store: newStore(config, f.refresh)}
	go p.serveMetrics()
	go p.serveHealth()
	led := make(chan struct{})
	if f.elect {
		go p.elect(ctx, led)
	} else {
		p.leads.Store(true)
		close(led)
	}
	go func() {
		<-led
		p.follow(ctx)
	}()
	p.serve(ctx)
	p.release()
}

// picker is the whole program's state.
type picker struct {
	flags  flags
	api    *api
	config *config
	store  *store
	leads  atomic.Bool
	holder string
}

// follow keeps the store at what the API server has, and ends the program where that is not to be had.
func (p *picker) follow(ctx context.Context) {
	inNamespace := "/namespaces/" + p.flags.namespace
	wanted := []*informer{
		{path: "/apis/" + p.flags.group + "/v1" + inNamespace + "/inferencepools", name: p.flags.name, heed: p.store.heedPool},
		{path: "/api/v1" + inNamespace + "/pods", heed: p.store.heedPod},
	}
	for _, plural := range []string{"inferenceobjectives", "inferencemodelrewrites"} {
		for _, group := range []string{"llm-d.ai", "inference.networking.x-k8s.io"} {
			path := "/apis/" + group + "/v1alpha2"
			if p.api.serves(ctx, path, plural) {
				wanted = append(wanted, &informer{path: path + inNamespace + "/" + plural, heed: func(string, object) {}})
				break
			}
		}
	}
	deadline := time.After(syncSeconds * time.Second)
	for _, one := range wanted {
		one.synced = make(chan struct{})
		go p.api.follow(ctx, one)
	}
	for _, one := range wanted {
		select {
		case <-one.synced:
		case <-ctx.Done():
			return
		case <-deadline:
			log.Fatalf("%s could not be listed within %d s", one.path, syncSeconds)
		}
	}
	log.Print("all that is followed has been listed")
}
