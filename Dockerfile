# The operator's image. The base is any Python 3.11 or newer with venv; `make image-files` makes build/image.
ARG BASE_IMAGE=python:3.11-slim
FROM ${BASE_IMAGE}

# In an environment of its own: Debian's Python takes no packages beside its own. The hashes hold what is installed.
RUN python3 -m venv /opt/modelplane
COPY requirements-image.txt /tmp/
RUN /opt/modelplane/bin/pip install --no-cache-dir --no-deps --require-hashes -r /tmp/requirements-image.txt
COPY build/image/helm /usr/local/bin/
COPY build/image/definitions /opt/modelplane/definitions
COPY modelplane_operator /opt/modelplane/app/modelplane_operator
# Its user may write nothing: what is not compiled here would be at every start.
RUN /opt/modelplane/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/modelplane/app

# Kubelets and Prometheus ask at the pod's address, on whichever family it has.
ENV PYTHONPATH=/opt/modelplane/app MODELPLANE_LISTEN=:8080 \
    MODELPLANE_HELM=/usr/local/bin/helm MODELPLANE_DEFINITIONS=/opt/modelplane/definitions
USER 65532:65532
ENTRYPOINT ["/opt/modelplane/bin/python", "-m", "modelplane_operator"]
CMD ["run"]
