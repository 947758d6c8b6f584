# Vestibule as a container: one static binary on nothing.
#
#   podman build --format docker -t vestibule .
#   podman run --read-only --cap-drop=all -p 5223:5223 -v /etc/vestibule:/etc/vestibule:ro vestibule \
#       run --forward xmpps://0.0.0.0:5223=192.0.2.10:5222 \
#       --cert /etc/vestibule/fullchain.pem --key /etc/vestibule/privkey.pem
#
# podman's own format (OCI) has no place for HEALTHCHECK, hence --format docker; docker has but that one.
# User 65532 must be able to read the key. The README's section "As a container" has the rest.
#
# To package a binary built elsewhere, put it and a CA bundle where the build stage would
# (DIR/out/vestibule, DIR/out/etc/ssl/certs/ca-certificates.crt) and let DIR take the stage's place:
#
#   podman build --format docker --build-context build=DIR -t vestibule .

FROM docker.io/library/rust:1.95-bookworm AS build
WORKDIR /src
COPY . .
# The target is named although it is the host's own: only then do build scripts and procedural
# macros, which cannot be static, stay clear of RUSTFLAGS.
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/src/target \
    target="$(rustc -vV | sed -n 's/^host: //p')" \
    && RUSTFLAGS="-C target-feature=+crt-static" cargo build --release --locked --target "$target" \
    && install -D "target/$target/release/vestibule" /out/vestibule \
    && install -D -m 644 /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ca-certificates.crt

FROM scratch
ARG VERSION=0.1.0
LABEL org.opencontainers.image.title="Vestibule" \
      org.opencontainers.image.description="The TLS front door of chat services" \
      org.opencontainers.image.licenses="Apache-2.0 OR MIT" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /out/ /
COPY LICENSE-APACHE LICENSE-MIT /licenses/

# A number, so that "must not run as root" can be checked without a user database.
USER 65532:65532
# Loopback inside the container, for the health check. To scrape metrics from outside, share the
# container's network (a pod), or set unix:PATH on a mounted volume.
ENV VESTIBULE_ADMIN=127.0.0.1:9090
EXPOSE 5223
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["/vestibule", "healthcheck"]
ENTRYPOINT ["/vestibule"]
CMD ["run"]
