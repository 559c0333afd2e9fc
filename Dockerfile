# Trains, publishes and verifies a small model:  docker build -t privlearn . && docker run privlearn
# Any command of privlearn runs in it:  docker run -v "$PWD:/work" privlearn privlearn budget --help
ARG PYTHON=3.13

FROM python:${PYTHON}-slim AS wheel
RUN apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev
COPY . /source
RUN PRIVLEARN_COMPILE=1 pip wheel --no-cache-dir --no-deps -w /dist /source

FROM python:${PYTHON}-slim
LABEL org.opencontainers.image.title="privlearn" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY constraints.txt release/try.sh /opt/privlearn/
# PyTorch for processors alone: the default build brings some gigabytes of CUDA.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c /opt/privlearn/constraints.txt --index-url ${TORCH_INDEX} torch
COPY --from=wheel /dist /dist
RUN pip install --no-cache-dir -c /opt/privlearn/constraints.txt /dist/*.whl
RUN useradd --create-home --uid 1000 analyst && mkdir /work && chown analyst /work
USER analyst
WORKDIR /work
CMD ["bash", "/opt/privlearn/try.sh"]
