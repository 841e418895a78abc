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
        # a whole search with the real OpenVINO
        "openvino_search "
        # models of gigabytes, those of public packages, and searches that are long for what they show
        "large_models real_models sensitivity_beside pick_biases recovered_search repeatability "
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

# Tests elsewhere that take half a second of a processor and more, as `tests.support.processor_times` found.
SLOW_TESTS = frozenset(
    {
        "test_a_metric_that_declares_its_unit_is_refused_before_anything_runs",
        "test_a_missing_file_that_two_options_name_is_told_once",
        "test_a_percentage_means_a_share_where_all_scores_are_0_or_1",
        "test_a_percentage_of_zero_ends_the_search_and_says_how_to_go_on",
        "test_a_registered_limit_is_an_option_of_every_verb_that_judges",
        "test_an_export_needs_the_metric_too",
        "test_an_interrupted_search_says_what_goes_on_with_it",
        "test_every_option_of_every_verb_has_its_whole_text_at_80_columns",
        "test_finalists_are_measured_side_by_side_and_scored_on_final",
        "test_front_and_show_know_the_pick_by_a_score",
        "test_int8_needs_the_first_layer_in_float",
        "test_label_maps_of_the_final_samples_are_checked",
        "test_labels_of_every_scored_sample_are_checked_before_anything_is_built",
        "test_late_requests_of_an_hour_stay_as_often_as_early_ones",
        "test_limits_of_load_judge_and_are_not_stored",
        "test_long_chains_with_skips_are_narrow_and_solved_exactly",
        "test_more_calibration_samples_than_there_are_cannot_be_chosen",
        "test_no_sample_flips_where_no_classes_are_scored",
        "test_one_mix_is_judged_by_the_share_too",
        "test_other_scores_are_refused_with_what_to_declare",
        "test_processes_that_keep_and_find_at_once_see_whole_files",
        "test_ranking_gives_everything_allowed_cheapest_first",
        "test_report_and_export_know_the_pick_by_a_score",
        "test_shapes_are_read_whatever_the_name",
        "test_status_of_a_finished_study",
        "test_the_best_new_codes_are_new_and_the_best",
        "test_the_limit_is_a_share_of_what_fp32_reaches",
        "test_two_scores_that_differ_by_more_than_chance_are_told_with_both_together",
        "test_where_no_mix_is_measurably_faster_than_fp32_it_is_said",
    }
)

# Files whose tests take ten seconds of a processor and more, the longest first. Handed out last, one of them is all
# that a core has left to do while the other has nothing.
SLOWEST = (
    "workers killed process sensitivity refusals compose search fleet rescoring chaos tensorrt_strong builders "
    "server_tables export retries claims door samplers status server_search cli_worker shipping guided "
    "solver renewed_columns cli_input tensorrt_cli targets unrelated refusals imports benchmark_trust repeatability "
    "pace recovered_search runner store_processes trial_storage clusters_cli tensor_ranges interrupts pick_biases"
).split()
