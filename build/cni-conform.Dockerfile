# The image of the suite: one static program, and empty folders for what plugins write. `make image` makes it of this file for two
# architectures, without Docker. Docker makes the same:
#
#	mkdir -p bin/suite/empty; for a in amd64 arm64; do
#		CGO_ENABLED=0 GOARCH=$a go -C conform build -o ../bin/suite/$a/bin/ ./cmd/cni-conform; done
#	docker buildx build --platform linux/amd64,linux/arm64 -f build/cni-conform.Dockerfile bin/suite
#
# The suite makes namespaces and mounts, so the container has to be privileged. conform/README.md says how to run it, and how to add
# programs that plugins need.
FROM scratch
ARG TARGETARCH
LABEL org.opencontainers.image.source=https://github.com/berth-net/berth
LABEL org.opencontainers.image.licenses=Apache-2.0
COPY ${TARGETARCH}/bin/ /usr/bin/
COPY empty/ /etc/
COPY empty/ /run/
COPY empty/ /tmp/
COPY empty/ /var/lib/
COPY empty/ /var/log/
COPY empty/ /var/tmp/
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ENTRYPOINT ["/usr/bin/cni-conform"]
