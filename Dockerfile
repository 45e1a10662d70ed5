# Two stages: one builds the compiled wheel, the other holds what runs and nothing else. What is installed has its hash in
# packaging/requirements.
FROM python:3.11-slim AS build
RUN command -v cc || (apt-get update && apt-get install -y --no-install-recommends gcc libc6-dev)
ENV STANIEL_BUILD=compiled
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src/staniel/__init__.py src/staniel/__main__.py src/staniel/compiled.py src/staniel/kombu.py src/staniel/values.py src/staniel/py.typed ./src/staniel/
COPY packaging ./packaging
COPY protocol ./protocol
COPY queues ./queues
COPY journal ./journal
COPY broker ./broker
COPY server ./server
COPY client ./client
COPY pipeline ./pipeline
COPY worker ./worker
COPY cluster ./cluster
COPY docs/man ./docs/man
COPY pyspark_staniel.py pyspark_staniel_journal.py ./
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --no-cache-dir --require-hashes --requirement packaging/requirements/build.txt \
 && /opt/build/bin/pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /wheels . \
 && python -m venv /opt/staniel \
 && /opt/staniel/bin/pip install --no-cache-dir --require-hashes --requirement packaging/requirements/base.txt \
 && /opt/staniel/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl

FROM python:3.11-slim
ENV PATH=/opt/staniel/bin:$PATH PYTHONUNBUFFERED=1
COPY --from=build /opt/staniel /opt/staniel
# A fixed id, so that a bind-mounted spool can be given to it: chown 22133:22133.
# In a container loopback cannot be reached from outside, hence 0.0.0.0; publish the port only where its clients are.
RUN groupadd --gid 22133 staniel \
 && useradd --uid 22133 --gid staniel --no-create-home --home-dir /var/lib/staniel --shell /usr/sbin/nologin staniel \
 && install --directory --owner=staniel --group=staniel --mode=0750 /var/lib/staniel \
 && install --directory /etc/staniel \
 && printf '[server]\nhost = "0.0.0.0"\nopen_network = true\nspool = "/var/lib/staniel"\n\n[memcache]\nport = 22133\n' \
        > /etc/staniel/staniel.toml
# By number, so that an orchestrator can see that it is not root.
USER 22133:22133
WORKDIR /var/lib/staniel
VOLUME /var/lib/staniel
EXPOSE 22133
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=60s --retries=3 CMD ["staniel", "ping", "--alive"]
ENTRYPOINT ["staniel"]
CMD ["serve", "--config", "/etc/staniel/staniel.toml"]
