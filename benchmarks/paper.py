"""Figures of Roffia 2016 that ours are printed beside: tables 8 to 15, and the model of its figures 12 to 15."""

from collections.abc import Mapping
from typing import NamedTuple


class Spread(NamedTuple):
    """What the tables of appendix B have of each timing component: mean, standard deviation, minimum, maximum."""

    mean: float
    deviation: float
    least: float
    most: float


SIZES = (10, 25, 50, 100)
"""Triples of an update of the experiment ROAD (table 6)."""

LAMP = {
    "Ups": 68.0,
    "Sps": 68e3,
    "Tps": 68e3,
    "NLmin": 1.7e-3,
    "NLmax": 9.3e-3,
    "E2E": 1.0,
    "LHR": 0.40,
    "notifications": 23,
}
ROAD = {
    "Ups": 3.8,
    "Sps": 3.8e3,
    "Tps": 117.3e3,
    "NLmin": 1.3e-3,
    "NLmax": 541.3e-3,
    "E2E": 1.8,
    "LHR": 0.72,
    "notifications": 1004,
}
"""Table 8; times in seconds, LHR in percent."""

SHARES = {
    "LAMP": {"update": 49.0, "lutt": 7.0, "booster": 44.0, "notify": 1.0},
    "ROAD": {"update": 35.0, "lutt": 3.0, "booster": 62.0, "notify": 1.0},
}
"""Table 8, percent of T_TOTAL; notify is given as much less than 1."""

LUTT = {
    "LAMP": {
        "on": {
            "Ups": 68.0,
            "Sps": 68e3,
            "Tps": 68e3,
            "NLmax": 0.09,
            "E2E": 1.0,
            "booster": 2.0,
            "lutt": 0.3,
            "total": 4.6,
        },
        "off": {"Ups": 0.55, "Sps": 557.0, "Tps": 557.0, "NLmax": 1.8, "E2E": 245.0, "booster": 540.0, "total": 540.0},
    },
    "ROAD": {
        "on": {
            "Ups": 3.8,
            "Sps": 3.8e3,
            "Tps": 117.3e3,
            "NLmax": 0.54,
            "E2E": 1.8,
            "booster": 50.2,
            "lutt": 2.1,
            "total": 81.3,
        },
        "off": {
            "Ups": 0.03,
            "Sps": 29.4,
            "Tps": 901.0,
            "NLmax": 129.0,
            "E2E": 367.0,
            "booster": 10560.0,
            "total": 10590.0,
        },
    },
}
"""Table 9, seconds; that without LUTT is an estimate. Its Tps are NuAVG x Sps. NLmax of LAMP is 0.09 s here, and
9.3 ms in table 8."""

GRAINS = ("fine", "coarse")
"""Subscriptions 1...1000 and 1001...1004."""


def _spreads(unit: float, *rows: tuple[float, float, float, float]) -> tuple[Spread, ...]:
    return tuple(Spread(*(value * unit for value in row)) for row in rows)


UPDATE = {
    "LAMP": _spreads(
        1e-3,
        (7.795, 4.220, 4.463, 33.189),
        (6.458, 2.752, 3.885, 12.920),
        (6.944, 3.530, 3.850, 13.291),
        (7.324, 2.614, 4.203, 12.627),
    ),
    "ROAD": _spreads(
        1e-3,
        (52.825, 21.569, 34.239, 147.540),
        (76.279, 18.619, 62.169, 164.443),
        (131.069, 6.913, 121.653, 175.980),
        (250.834, 8.316, 240.710, 272.640),
    ),
}
"""Table 10, seconds of an update, by size of its road."""

LUTT_CHECK = {
    "LAMP": {
        "fine": _spreads(1e-6, (1, 1, 0, 111), (1, 1, 0, 160), (1, 1, 0, 54), (1, 1, 0, 13)),
        "coarse": _spreads(1e-6, (7, 3, 3, 19), (6, 7, 3, 144), (6, 3, 3, 27), (7, 3, 3, 15)),
    },
    "ROAD": {
        "fine": _spreads(1e-6, (3, 1, 2, 35), (5, 1, 4, 115), (10, 2, 9, 131), (22, 7, 19, 303)),
        "coarse": _spreads(1e-6, (40, 15, 22, 141), (68, 16, 46, 183), (133, 14, 101, 214), (255, 24, 213, 317)),
    },
}
"""Table 11, seconds of one update and one subscription."""

HIT_TRIPLES = {"LAMP": {"fine": (1,) * 4, "coarse": (1,) * 4}, "ROAD": {"fine": (1,) * 4, "coarse": SIZES}}
"""Table 12: triples that a BOOSTER is given by an update that notifies, and as many results. One for the change of a
triple, which removes one and adds one."""

BOOSTER = {
    "LAMP": {
        "fine": _spreads(
            1e-3,
            (1.816, 1.030, 1.073, 3.799),
            (1.202, 0.115, 1.053, 1.351),
            (2.268, 0.261, 1.938, 2.573),
            (1.902, 0.623, 1.077, 2.574),
        ),
        "coarse": _spreads(
            1e-3,
            (1.580, 0.556, 1.023, 4.446),
            (1.619, 0.557, 1.035, 3.549),
            (1.528, 0.630, 1.013, 4.671),
            (1.749, 0.736, 1.059, 3.197),
        ),
    },
    "ROAD": {
        "fine": _spreads(
            1e-3,
            (1.206, 0.087, 1.121, 1.569),
            (1.216, 0.135, 1.120, 1.853),
            (1.199, 0.086, 1.126, 1.729),
            (1.297, 0.246, 1.110, 2.812),
        ),
        "coarse": _spreads(
            1e-3,
            (13.398, 2.189, 12.137, 26.517),
            (32.859, 2.837, 30.518, 55.475),
            (66.496, 5.105, 61.218, 104.513),
            (127.244, 7.617, 121.634, 162.527),
        ),
    },
}
"""Table 13, seconds of one update and one subscription whose LUTT it hits."""

_NOTIFY_ROAD = _spreads(1e-6, (74, 10, 66, 116), (73, 10, 66, 112), (70, 5, 65, 93), (76, 21, 65, 272))
NOTIFY = {
    "LAMP": {
        "fine": _spreads(1e-6, (136, 99, 72, 327), (83, 8, 72, 91), (203, 9, 193, 215), (164, 71, 75, 270)),
        "coarse": _spreads(1e-6, (228, 0, 228, 228), (84, 0, 84, 84), (232, 0, 232, 232), (79, 0, 79, 79)),
    },
    "ROAD": {"fine": _NOTIFY_ROAD, "coarse": _NOTIFY_ROAD},
}
"""Table 14, seconds of one notification."""

OVERHEAD = {
    "LAMP": {"measuring": 1.03, "protocol": 2.57, "elapsed": 8.09},
    "ROAD": {"measuring": 1.08, "protocol": 3.30, "elapsed": 86.87},
}
"""Table 15 (the first of that number), appendix B.E, seconds."""

T_UPDATE = tuple(row.mean for row in UPDATE["ROAD"])
"""Table 10, ROAD, seconds an update."""

T_LUTT = tuple(
    1000 * fine.mean + 4 * coarse.mean
    for fine, coarse in zip(LUTT_CHECK["ROAD"]["fine"], LUTT_CHECK["ROAD"]["coarse"], strict=True)
)
"""Table 11, ROAD, seconds an update: the sum over the 1,000 fine-grain and the 4 coarse-grain tables."""

T_BOOSTER = tuple(row.mean for row in BOOSTER["ROAD"]["coarse"])
"""Table 13, ROAD, seconds of one coarse-grain subscription."""

T_NOTIFY = tuple(row.mean for row in NOTIFY["ROAD"]["coarse"])
"""Table 14, ROAD, seconds of one notification."""

ALL_HIT = {
    "lamp": {"tu": 7.302e-3, "tl": 0.001e-3, "tb": 1.789e-3, "te": 0.155e-3},
    "road": {"tu": 252.573e-3, "tl": 0.255e-3, "tb": 127.243e-3, "te": 10.321e-3},
}
"""Table 15 (the second of that number), appendix B.F: seconds of one subscription, of the update for tu."""


def all_hit_notifications_per_second(experiment: str, subscriptions: int) -> float:
    """What the paper's model gives for one core: the components of all subscriptions one after the other."""
    t = ALL_HIT[experiment]
    return subscriptions / (t["tu"] + subscriptions * (t["tl"] + t["tb"] + t["te"]))


def model_updates_per_second(t: Mapping[str, float], subscriptions: int) -> float:
    """The paper's formula (7): the endpoint's update and the LUTTs, one after the other."""
    return 1 / (t["tu"] + subscriptions * t["tl"])


def model_notifications_per_second(t: Mapping[str, float], cores: int) -> float:
    """The paper's formula (8): BOOSTER and notification, on all cores."""
    return cores / (t["tb"] + t["te"])
