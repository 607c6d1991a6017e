// ai-gateway stands in for the controller of Envoy AI Gateway where it is an extension of Envoy Gateway: it turns routes
// to InferencePools into what Envoy needs to ask their endpoint pickers. docs/stand-ins.md says what it models.
package main

import (
	"context"
	"log"
	"net"
	"os"
	"os/signal"
	"syscall"

	extension "github.com/envoyproxy/gateway/proto/extension"
	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

func main() {
	address := pflag.String("extensionServerPort", ":1063", "where Envoy Gateway asks")
	largest := pflag.Int("maxRecvMsgSize", 4<<20, "bytes of the largest message that is taken")
	pflag.Parse()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(*largest))
	extension.RegisterEnvoyGatewayExtensionServer(server, hooks{})
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	ctx, end := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer end()
	go func() { <-ctx.Done(); server.GracefulStop() }()
	log.Printf("listening on %s", listener.Addr())
	if err := server.Serve(listener); err != nil {
		log.Fatal(err)
	}
}
