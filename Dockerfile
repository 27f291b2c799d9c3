# A server in a container: docker build -t millrace . && docker run -p 9240:9240 -v millrace:/data millrace
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
RUN pip install --no-cache-dir --prefix=/installed '.[server,compression]'

FROM python:3.13-slim
COPY --from=build /installed /usr/local
RUN useradd --system --uid 10001 --no-create-home millrace && install --directory --owner=millrace --mode=0700 /data
USER millrace
ENV MILLRACE_DATA_DIR=/data MILLRACE_LISTEN=0.0.0.0:9240 MILLRACE_CONSOLE=0.0.0.0:9241 MILLRACE_LOG_LEVEL=info
VOLUME /data
EXPOSE 9240 9241
# A server that recovers a long log is not healthy until it serves.
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9241/health', timeout=2)"]
ENTRYPOINT ["millrace"]
CMD ["serve"]
