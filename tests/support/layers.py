"""Which files of tests belong to the second layer, `make test-all`, and which take longest.

Tests that are given a database server by a parameter belong to it too, wherever they are.
"""

# By names without `test_`, and why `make test` can do without them every time.
SECOND_LAYER = frozenset(
    (
        # servers of databases, of objects and of metrics, and a browser
        "server_search server_tables retries shipping artifact_store monitoring report_in_browser bounded_server "
        # many workers, and leases that expire
        "workers fleet crowd cli_worker "
        # storms of kills and stops, and long stories of faults
        "chaos killed interrupts store_processes rescoring gunicorn shared_state fuzz "
        # processes that only build, and TensorRT's own strongly typed builder
        "builders tensorrt_strong "
        # models of gigabytes, and searches that are long for what they show
        "large_models sensitivity_beside pick_biases recovered_search repeatability "
        # files of containers, which change rarely
        "compose docker "
        # benchmarks
        "benchmark_control benchmark_peers benchmark_trust samplers worlds pick_bounds"
    ).split()
)

# Folders and files of which even a quick test takes a tenth of a second of a processor and more: `make test-quick`
# leaves them out, and `python -m pytest FOLDER` runs them where they are changed.
SLOW_PLACES = (
    "evaluators/recovery/",
    "search/sampler/",
    "studies/crew/",
    "studies/store/",
    "studies/guard/test_forks.py",
)

# Files whose tests take ten seconds of a processor and more, the longest first. Handed out last, one of them is all
# that a core has left to do while the other has nothing.
SLOWEST = (
    "workers killed process sensitivity repair compose search fleet rescoring chaos tensorrt_strong builders "
    "server_tables export retries leases door samplers status server_search cli_worker shipping guided "
    "solver store cli_input tensorrt_cli targets unrelated refusals imports benchmark_trust repeatability pace "
    "recovered_search runner store_processes trial_storage clusters_cli tensor_ranges interrupts pick_biases"
).split()
