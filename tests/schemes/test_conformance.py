"""Every built-in scheme passes the tests that the package gives to those who write one."""

from types import MappingProxyType

import pytest

from polo.testing import SchemeConformance, TrainingConformance
from polo.watermark.schemes import SCHEMES

# It starts Python and torch anew.
pytest.mark.slow(SchemeConformance.test_another_process_finds_the_same)


class TestEdnn(SchemeConformance):
    scheme = "ednn"


class TestDenseEdnn(SchemeConformance):
    scheme = "ednn"
    options = MappingProxyType({"key": "dense"})


class TestEdnnMean(SchemeConformance):
    scheme = "ednn-mean"


class TestFedipr(SchemeConformance):
    scheme = "fedipr"


class TestFediprInSmallBlocks(SchemeConformance):
    scheme = "fedipr"
    options = MappingProxyType({"block": 16})


class TestFediprKernel(SchemeConformance):
    scheme = "fedipr-kernel"


class TestRiga(SchemeConformance):
    scheme = "riga"


class TestSigned(SchemeConformance):
    scheme = "signed"


class TestSignedAtFullLoad(SchemeConformance):
    scheme = "signed"
    options = MappingProxyType({"load": 1.0})


@pytest.mark.slow
class TestTrainingWithEdnn(TrainingConformance):
    scheme = "ednn"


@pytest.mark.slow
class TestTrainingWithDenseEdnn(TrainingConformance):
    scheme = "ednn"
    options = MappingProxyType({"key": "dense"})


@pytest.mark.slow
class TestTrainingWithEdnnMean(TrainingConformance):
    scheme = "ednn-mean"


@pytest.mark.slow
class TestTrainingWithFedipr(TrainingConformance):
    scheme = "fedipr"


@pytest.mark.slow
class TestTrainingWithFediprKernel(TrainingConformance):
    scheme = "fedipr-kernel"


@pytest.mark.slow
class TestTrainingWithRiga(TrainingConformance):
    scheme = "riga"


@pytest.mark.slow
class TestTrainingWithSigned(TrainingConformance):
    scheme = "signed"


@pytest.mark.parametrize("kind", [SchemeConformance, TrainingConformance])
def test_no_scheme_is_left_out(kind: type) -> None:
    assert {tested.scheme for tested in kind.__subclasses__()} >= set(SCHEMES)
