"""Counters of many replicas as one page."""

from prometheus_client.parser import text_string_to_metric_families

from lastword.serve.metrics import PrometheusMetrics, merge_metrics
from lastword.serve.scheduler import ReplicaReport


def test_every_series_names_its_replica_and_every_family_is_described_once():
    first, second = PrometheusMetrics(), PrometheusMetrics()
    first.ended("answered")
    second.ended("answered")
    second.ended("failed")
    second.probed(3, 0.2)
    reports = {"aa": ReplicaReport(seconds=1.5), "bb": ReplicaReport()}
    page = merge_metrics({"aa": first.text(), "bb": second.text()}, reports).decode()
    families = {own.name: own for own in text_string_to_metric_families(page)}
    assert page.count("# HELP lastword:request_ended_total") == 1
    ended = {
        (own.labels["how"], own.labels["replica"]): own.value
        for own in families["lastword:request_ended"].samples
        if own.name.endswith("_total")
    }
    assert ended == {("answered", "aa"): 1, ("answered", "bb"): 1, ("failed", "bb"): 1}
    probes = {own.labels["replica"]: own.value for own in families["lastword:probes"].samples}
    assert probes == {"aa": 0, "bb": 3}
    (replicas,) = families["lastword:replicas"].samples
    assert replicas.value == 2
    work = families["lastword:predicted_work_seconds"].samples
    assert {own.labels["replica"]: own.value for own in work} == {"aa": 1.5, "bb": 0}
