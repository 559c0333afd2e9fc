"""Named checks of what is said beside others' figures."""

from __future__ import annotations

from privlearn_studies import others
from privlearn_studies.others import PUBLISHED, best_known
from tests.support.checks import check


@check
def check_more_privacy_counts_for_less_and_nothing_else_does() -> None:
    """A figure holds for every larger epsilon; the best is the most accurate."""
    assert best_known("cifar10", 0.5) is None
    assert best_known("usps", 8.0) is None
    for each in PUBLISHED:
        found = best_known(each.data, each.epsilon)
        assert found is not None
        assert found.accuracy >= each.accuracy
        assert found.epsilon <= each.epsilon
    quoted = [each.accuracy for each in PUBLISHED if each.read_in.startswith("Fu et al.")]
    assert 0.9779 in quoted
    assert not {0.9793, 0.8838, 0.6441} & set(quoted)  # their own, which are disputed
    late = best_known("cifar10", 8.0)
    assert late is not None
    assert (late.accuracy, late.whose) == (0.825, "Klause et al. 2022")


@check
def check_the_page_says_where_we_are_behind() -> None:
    """Everywhere with accuracies of 0, nowhere with 1; and where more is claimed, the page says "at
    least".
    """
    data = dict.fromkeys(each.data for each in PUBLISHED)
    low, high = (
        others.compared({(name, epsilon): accuracy for name in data for epsilon in (1.0, 8.0)})
        for accuracy in (0.0, 1.0)
    )
    assert "mnist at epsilon 1, 8; fashion-mnist at epsilon 1, 8; cifar10 at epsilon 1, 8" in low
    assert "mnist nowhere; fashion-mnist nowhere; cifar10 nowhere" in high
    assert "| at least 0.825 (Klause et al. 2022) |" in low
    assert "| 0.723 (Tang et al. 2023) |" in low
    claimed = [others.more_is_claimed("cifar10", epsilon) for epsilon in (0.5, 1, 2, 8, 9)]
    assert claimed == [False, False, True, True, False]
    assert not others.more_is_claimed("mnist", 2)
