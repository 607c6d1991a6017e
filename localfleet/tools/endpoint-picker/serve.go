package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"strings"
	"time"

	extproc "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	health1 "google.golang.org/grpc/health/grpc_health_v1"
)

const (
	lastRequests = 30 * time.Second // of the requests under way at its end
	keyBits      = 4096
)

// serve answers Envoy until the program is told to end.
func (p *picker) serve(ctx context.Context) {
	var options []grpc.ServerOption
	if p.flags.secure {
		options = append(options, grpc.Creds(credentials.NewTLS(&tls.Config{NextProtos: []string{"h2"}, Certificates: []tls.Certificate{selfSigned()}})))
	}
	server := grpc.NewServer(options...)
	extproc.RegisterExternalProcessorServer(server, service{picker: p})
	if p.flags.healthOnPort {
		said := health.NewServer()
		said.SetServingStatus(extproc.ExternalProcessor_ServiceDesc.ServiceName, health1.HealthCheckResponse_SERVING)
		health1.RegisterHealthServer(server, said)
	}
	go func() {
		<-ctx.Done()
		log.Print("no further request is taken")
		time.AfterFunc(lastRequests, server.Stop)
		server.GracefulStop()
	}()
	serveGRPC(server, p.flags.port)
}

func serveGRPC(server *grpc.Server, port int) {
	listener, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("listening on %d", port)
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}

func selfSigned() tls.Certificate {
	began := time.Now()
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		log.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{Organization: []string{"Inference Ext"}},
		NotBefore: time.Now(), NotAfter: time.Now().AddDate(10, 0, 0), BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageKeyEncipherment | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	made, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		log.Fatal(err)
	}
	log.Printf("made a certificate in %.1f s", time.Since(began).Seconds())
	return tls.Certificate{Certificate: [][]byte{made}, PrivateKey: key}
}

// healthOf answers kubelets.
type healthOf struct {
	health1.UnimplementedHealthServer
}

func (p *picker) serveHealth() {
	server := grpc.NewServer()
	health1.RegisterHealthServer(server, healthOf{})
	serveGRPC(server, p.flags.healthPort)
}

// Check says SERVING for any name of a service, whether Envoy can ask yet or not.
func (h healthOf) Check(context.Context, *health1.HealthCheckRequest) (*health1.HealthCheckResponse, error) {
	return &health1.HealthCheckResponse{Status: health1.HealthCheckResponse_SERVING}, nil
}

func (p *picker) serveMetrics() {
	mux := http.NewServeMux()
	mux.HandleFunc("/metrics", p.guarded(p.writeMetrics))
	mux.HandleFunc("/debug/plugins/state", p.guarded(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }))
	if p.flags.profiled {
		mux.HandleFunc("/debug/pprof/", p.guarded(pprof.Index))
		mux.HandleFunc("/debug/pprof/profile", p.guarded(pprof.Profile))
	}
	log.Fatal(http.ListenAndServe(fmt.Sprintf(":%d", p.flags.metricsPort), mux))
}

func (p *picker) writeMetrics(w http.ResponseWriter, _ *http.Request) {
	s := p.store
	s.Lock()
	defer s.Unlock()
	fmt.Fprintf(w, "inference_pool_ready_pods{name=%q} %d\n", deploymentOf(os.Getenv("POD_NAME")), len(s.servers))
	fmt.Fprintf(w, "inference_objective_request_total{} %d\n", s.requests)
	for _, one := range s.servers {
		fmt.Fprintf(w, "inference_pool_per_pod_queue_size{name=%q,model_server_pod=%q} %g\n", deploymentOf(os.Getenv("POD_NAME")), one.pod, one.metrics.waiting)
	}
}

// guarded lets in whom the API server knows and permits, where it is to be asked.
func (p *picker) guarded(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if p.flags.authenticated {
			if code := p.admits(r); code != http.StatusOK {
				http.Error(w, http.StatusText(code), code)
				return
			}
		}
		next(w, r)
	}
}

// admits returns 200, or what else an asker is told. Without the permission to ask, nobody is let in.
func (p *picker) admits(r *http.Request) int {
	token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token == "" {
		return http.StatusUnauthorized
	}
	var who struct {
		Status struct {
			Authenticated bool
			User          struct {
				Username string
				Groups   []string
			}
		}
	}
	review := map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": map[string]any{"token": token},
	}
	if p.api.read(r.Context(), "POST", "/apis/authentication.k8s.io/v1/tokenreviews", review, &who) != nil {
		return http.StatusInternalServerError
	}
	if !who.Status.Authenticated {
		return http.StatusUnauthorized
	}
	var may struct{ Status struct{ Allowed bool } }
	access := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": map[string]any{
			"user": who.Status.User.Username, "groups": who.Status.User.Groups,
			"nonResourceAttributes": map[string]any{"path": r.URL.Path, "verb": "get"},
		},
	}
	if p.api.read(r.Context(), "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", access, &may) != nil {
		return http.StatusInternalServerError
	}
	if !may.Status.Allowed {
		return http.StatusForbidden
	}
	return http.StatusOK
}

// deploymentOf returns what the pod's name has before the hash of its template and its own.
func deploymentOf(pod string) string {
	parts := strings.Split(pod, "-")
	return strings.Join(parts[:max(1, len(parts)-2)], "-")
}
