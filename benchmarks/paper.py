"""Figures of Roffia 2016 that ours are printed beside: tables 8, 10, 11, 13, 14 and 15."""

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

T_UPDATE = (52.825e-3, 76.279e-3, 131.069e-3, 250.834e-3)
"""Table 10, ROAD, seconds an update."""

T_LUTT = tuple((1000 * fine + 4 * coarse) * 1e-6 for fine, coarse in ((3, 40), (5, 68), (10, 133), (22, 255)))
"""Table 11, ROAD, seconds an update: the sum over the 1,000 fine-grain and the 4 coarse-grain tables."""

T_BOOSTER = (13.398e-3, 32.859e-3, 66.496e-3, 127.244e-3)
"""Table 13, ROAD, seconds of one coarse-grain subscription."""

T_NOTIFY = (74e-6, 73e-6, 70e-6, 76e-6)
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
