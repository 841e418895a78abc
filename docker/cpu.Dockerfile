# bitfront on the processor: ONNX Runtime and SQLite, no GPU.
#   docker build -f docker/cpu.Dockerfile -t bitfront:cpu .
#   docker run --rm -v "$PWD":/work bitfront:cpu search model.onnx --data data.npz --max-drop 1%
FROM python:3.12-slim

RUN useradd --create-home --uid 1000 bitfront
COPY pyproject.toml README.md /src/
COPY search /src/search
COPY evaluators /src/evaluators
COPY studies /src/studies
COPY examples /src/examples
RUN pip install --no-cache-dir '/src[cpu,dashboard,postgresql]' && rm -rf /src

USER bitfront
WORKDIR /work
HEALTHCHECK --interval=1m --timeout=30s CMD ["bitfront", "doctor"]
ENTRYPOINT ["bitfront"]
CMD ["--help"]
