# bitfront on the processor: ONNX Runtime and SQLite, no GPU.
#   docker build -f docker/cpu.Dockerfile -t bitfront:cpu .
#   docker run --rm -v "$PWD":/work bitfront:cpu search model.onnx --data data.npz --max-drop 1%
ARG PYTHON_TAG=3.12-slim
FROM python:${PYTHON_TAG}

RUN useradd --create-home --uid 1000 bitfront \
    && mkdir --parents /work /studies \
    && chown bitfront:bitfront /work /studies
COPY pyproject.toml README.md /src/
COPY bitfront /src/bitfront
COPY search /src/search
COPY evaluators /src/evaluators
COPY studies /src/studies
COPY examples /src/examples
RUN python3 -m pip install --no-cache-dir '/src[cpu,dashboard,gcs,mysql,postgresql,s3]' && rm -rf /src

USER 1000
WORKDIR /work
# Give --storage sqlite:////studies/bitfront.db to keep studies and engines here.
VOLUME ["/studies"]
HEALTHCHECK --interval=5m --timeout=60s --start-period=30s CMD ["bitfront", "doctor", "--backend", "onnxruntime"]
ENTRYPOINT ["bitfront"]
CMD ["--help"]
