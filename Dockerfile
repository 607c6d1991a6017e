# The operator's image. The base is any Python 3.11 or newer with venv, ldd and certificates; nothing of it is in the
# image but what the operator needs: scripts/image_root.py. `make image-files` makes build/image.
ARG BASE_IMAGE=python:3.13-slim
FROM ${BASE_IMAGE} AS build

# In an environment of its own: Debian's Python takes no packages beside its own. The hashes hold what is installed.
RUN python3 -m venv /opt/modelplane
COPY requirements-image.txt /tmp/
RUN /opt/modelplane/bin/pip install --no-cache-dir --no-compile --no-deps --require-hashes -r /tmp/requirements-image.txt
COPY kubeloop /opt/modelplane/app/kubeloop
COPY modelplane_operator /opt/modelplane/app/modelplane_operator
COPY build/image/definitions /opt/modelplane/definitions
COPY scripts/image_root.py /tmp/
RUN PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/opt/modelplane/app /opt/modelplane/bin/python /tmp/image_root.py /image
COPY build/image/helm /image/usr/local/bin/helm

FROM scratch
COPY --from=build /image /

ARG VERSION=dev
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Modelplane operator" \
      org.opencontainers.image.description="A control plane for AI inference over a fleet of Kubernetes clusters." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# Kubelets and Prometheus ask at the pod's address, on whichever family it has.
ENV PATH=/opt/modelplane/bin:/usr/local/bin:/usr/bin \
    PYTHONPATH=/opt/modelplane/app PYTHONDONTWRITEBYTECODE=1 HOME=/tmp LANG=C.UTF-8 \
    SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt \
    MODELPLANE_LISTEN=:8080 MODELPLANE_HELM=/usr/local/bin/helm MODELPLANE_DEFINITIONS=/opt/modelplane/definitions
USER 65532:65532
ENTRYPOINT ["/opt/modelplane/bin/python", "-m", "modelplane_operator"]
CMD ["run"]
