"""How much of each experiment is run."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """Repetitions (after the first, which is kept apart) and sizes; scaling counts pairs of repetitions.

    bare: the knowledge base has only the triples that the benchmark asks for. budget_s: a number of subscriptions
    that would take longer to make is left out, and the report says so. paper_whole: the paper's algorithm runs all
    updates, and not only the sample that the slower ones run.
    """

    bare: bool = False
    lamp: int = 15
    lamp_all: int = 5
    road: int = 7
    road_filter: int = 3
    timings: int = 5
    scaling: int = 6
    fine: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    coarse: tuple[int, ...] = (1_000, 10_000, 100_000)
    class_aware: int = 1_000
    building_sensors: int = 11_720
    path_edges: int = 10_000
    budget_s: float = 1800.0
    hot_values: int = 100_000
    hot_raw_values: int = 10_000
    hot_window: int = 1_000
    latency: int = 40
    durable: int = 3_000
    recovered: int = 20_000
    recoveries: int = 5
    wear_s: int = 7_200
    all_hit_lamp: tuple[int, ...] = (1, 10, 100, 1_000, 10_000)
    all_hit_road: tuple[int, ...] = (1, 10, 100, 1_000)
    subscribers: int = 1_000
    fan_out_updates: int = 30
    idle_sockets: int = 100
    idle_each: int = 100
    idle_updates: int = 100
    idle_turns: int = 80
    scrapes: int = 50
    history_days: int = 30
    starts: int = 9
    page_streams: int = 1_000
    page_s: float = 20.0
    page_turns: int = 3
    chat_turns: int = 20
    chat_messages: int = 100
    round_trips: int = 5_000
    queries: int = 5_000
    query_s: float = 10.0
    bulk_quads: int = 100_000
    alarms: int = 1_000
    mqtt_readings: int = 60_000
    mqtt_slow_readings: int = 2_000
    mqtt_sensors: int = 10_000
    coap_sensors: int = 500
    coap_s: float = 30.0
    coap_actuators: int = 1_000
    coap_switches: int = 5
    coap_single_actuators: int = 100
    coap_singles: int = 1_000
    coap_pause_s: float = 0.01
    coap_posts_s: float = 20.0
    coap_observers: int = 1_000
    coap_endpoints: int = 1_000
    boundaries: int = 100_000
    boundary_updates: int = 5_000
    boundaries_fired: int = 1_000
    boundaries_s: float = 20.0
    paper_repetitions: int = 8
    paper_whole: bool = True
    paper_sample: int = 5
    paper_rows: tuple[int, ...] = (10, 100, 1_000, 9_500)
    paper_subscribers: tuple[int, ...] = (1, 10, 100, 1_000)
    parallel_subscribers: int = 1_000
    parallel_shapes: int = 200
    parallel_updates: int = 40
    parallel_workers: tuple[int, ...] = (1, 2, 4)
    inference_updates: int = 3_000
    inference_instances: int = 10_000
    validation_rounds: int = 15
    validation_readings: int = 3_000
    takeover_papers: int = 2_000


FULL = Effort()
QUICK = Effort(
    bare=True,
    lamp=3,
    lamp_all=1,
    road=2,
    road_filter=1,
    timings=2,
    scaling=2,
    fine=(1_000, 3_000),
    coarse=(400, 800),
    class_aware=50,
    building_sensors=400,
    path_edges=1_000,
    budget_s=60.0,
    hot_values=4_000,
    hot_raw_values=2_000,
    hot_window=200,
    latency=6,
    durable=300,
    recovered=1_000,
    recoveries=1,
    wear_s=120,
    all_hit_lamp=(1, 100),
    all_hit_road=(1, 10),
    subscribers=50,
    fan_out_updates=5,
    idle_sockets=10,
    idle_each=20,
    idle_updates=20,
    idle_turns=3,
    scrapes=3,
    history_days=2,
    starts=1,
    page_streams=50,
    page_s=2.0,
    page_turns=1,
    chat_turns=2,
    chat_messages=5,
    round_trips=100,
    queries=80,
    query_s=0.2,
    bulk_quads=6_000,
    alarms=20,
    mqtt_readings=3_000,
    mqtt_slow_readings=200,
    mqtt_sensors=500,
    coap_sensors=50,
    coap_s=2.0,
    coap_actuators=50,
    coap_switches=1,
    coap_single_actuators=10,
    coap_singles=50,
    coap_posts_s=1.0,
    coap_observers=40,
    coap_endpoints=40,
    boundaries=2_000,
    boundary_updates=200,
    boundaries_fired=50,
    boundaries_s=1.0,
    paper_repetitions=1,
    paper_whole=False,
    paper_sample=1,
    paper_rows=(10, 100),
    paper_subscribers=(1, 10),
    parallel_subscribers=20,
    parallel_shapes=10,
    parallel_updates=4,
    parallel_workers=(2,),
    inference_updates=200,
    inference_instances=500,
    validation_rounds=3,
    validation_readings=300,
    takeover_papers=600,
)
"""For a look at whether all works; its figures mean little."""
