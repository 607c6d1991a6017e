#!/bin/sh
# The kubeconfig of the account that own-software.yaml or with-helm.yaml has made, for the cluster that kubectl points to:
#   examples/access/kubeconfig.sh https://berlin.example.com:6443 berlin.yaml
# Only you can read the file, and one that is there stays as it is: delete it when the hub's Secret has it.
# SERVER is the address at which the hub reaches the cluster. The token ends after DURATION (24h); the operator renews it
# where `credentialRenewal: TokenRequest` says so. TOKEN is one of your own, for example that of eternal-token.yaml.
# NAMESPACE is the account's (modelplane-access): inference-small for that of tenant-cluster.yaml.
set -euC
umask 077
server=${1:?"say the address of the cluster's API server: kubeconfig.sh https://HOST:PORT FILE"}
file=${2:?"say where to write it: kubeconfig.sh $server FILE"}
account="--namespace=${NAMESPACE:-modelplane-access}"
certificate=$(kubectl get configmap kube-root-ca.crt "$account" -o 'go-template={{index .data "ca.crt"}}')
authority=$(printf '%s\n' "$certificate" | base64 | tr -d '\n')
token=${TOKEN:-$(kubectl create token modelplane-operator "$account" --duration="${DURATION:-24h}")}
cat > "$file" <<END
apiVersion: v1
kind: Config
clusters: [{name: it, cluster: {server: "$server", certificate-authority-data: "$authority"}}]
users: [{name: operator, user: {token: "$token"}}]
contexts: [{name: it, context: {cluster: it, user: operator}}]
current-context: it
END
