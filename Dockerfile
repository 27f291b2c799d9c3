# A server in a container. It listens on all interfaces, so it starts only with a token (or MILLRACE_INSECURE=true):
#
#   docker build -t millrace . && docker run -p 9240:9240 -v millrace:/data -e MILLRACE_FRONT_TOKEN=... millrace
#
# Settings go by the environment, MILLRACE_PART_OPTION, or by options after the name of the image, which then begin
# with `serve`; docs/settings.md lists them.

FROM python:3.13-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE CHANGELOG.md ./
COPY model model
COPY wire wire
COPY server server
COPY client client
COPY spark_source spark_source
COPY cli cli
COPY examples examples
COPY src src
RUN pip install --no-cache-dir --prefix=/installed '.[server,store,compression]'

FROM python:3.13-slim
COPY --from=build /installed /usr/local
# A new volume takes over the owner of the folder. A folder of the host that is mounted there has to belong to 10001.
RUN groupadd --system --gid 10001 millrace \
    && useradd --system --uid 10001 --gid millrace --no-create-home millrace \
    && install --directory --owner=millrace --group=millrace --mode=0700 /data
# By number: Kubernetes cannot tell of a name that it is not root.
USER 10001:10001
# `docker stop` waits 10 s: an end in good order takes less.
ENV MILLRACE_DATA_DIR=/data MILLRACE_LISTEN=0.0.0.0:9240 MILLRACE_CONSOLE=0.0.0.0:9241 MILLRACE_LOG_LEVEL=info MILLRACE_SHUTDOWN_S=8s
VOLUME /data
EXPOSE 9240 9241
# A server that recovers a long log is not healthy until it serves.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9241/health', timeout=2)"]
ENTRYPOINT ["millrace"]
CMD ["serve"]
