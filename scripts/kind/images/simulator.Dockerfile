# The engine simulator, and the fleet's other programs in Python, beside the operator's own environment.
ARG OPERATOR
FROM ${OPERATOR}
COPY localfleet /opt/modelplane/app/localfleet
COPY vllm /usr/local/bin/vllm
ENTRYPOINT ["/usr/local/bin/vllm"]
CMD []
