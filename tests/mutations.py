"""Small faults, each of which the tests must notice: `python tests/mutations.py [NAME or MODULE ...]`.

Every fault is one a tired person could write: a factor, a sign, a divisor, a charge after its release, a lock that is
missing. The source is copied, one fault is put in, and the tests named beside it are run on the copy. Nothing here is
collected by pytest but for one test that every fault still has its place (``test_architecture.py``).

    python tests/mutations.py                     all of them, by the tests that are expected to notice
    python tests/mutations.py noise federated     those of some modules, or by name
    python tests/mutations.py --all-tests NAME    by the whole suite
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parent
SOURCE = TESTS.parent / "src"
_LONGEST = 900  # seconds; a test that hangs has not said what is wrong


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # below src/sordino
    old: str  # occurs once
    new: str
    tests: tuple[str, ...]  # files, or one test of a file where only that one is about it

    @property
    def module(self) -> str:
        return self.file.removesuffix(".py").replace("/", ".")


def m(file: str, name: str, old: str, new: str, *tests: str) -> Mutation:
    return Mutation(name, file, old, new, tests)


# fmt: off
MUTATIONS = [
    # Tables
    m("data/csv_rows.py", "a stray quote reaches into the next row",
      "            return self._well_formed.fullmatch(line) is not None", "            return True", "data_csv_rows"),
    m("data/csv_rows.py", "the header is read with what follows",
      'with path.open("rb", buffering=0) as raw:', 'with path.open("rb") as raw:', "cli_schema"),
    m("data/table.py", "rows without a target train",
      "there &= has_target(", "there |= has_target(", "data_table"),
    m("data/table.py", "peeked bounds are guaranteed", "if not peeked:", "if True:", "data_table"),
    m("data/cells.py", "numbers beyond their bounds", "np.clip(numbers_of(array), low, high)",
      "numbers_of(array)", "data_table"),
    m("data/reading.py", "rows beyond the first of a user count",
      "[ranks >= most]] = True", "[ranks > most]] = True", "data_reading"),
    m("data/matrix.py", "what was touched stays in memory", "if touched <= _RESIDENT or", "if True or",
      "data_matrix"),
    m("data/columns.py", "a first line that is a row is quoted",
      "if any(map(is_number, names)) or (from_a_line and not set(names) & set(wanted)):",
      "if False:",
      "data_table"),
    # One vector
    m("vector.py", "moved parameter unnoticed",
      "if parameter.data_ptr() != base + 4 * slot.start or not parameter.is_contiguous():",
      "if not parameter.is_contiguous():", "vector"),
    m("vector.py", "theta not put back", "    finally:\n        live.copy_(saved)",
      "    finally:\n        pass", "gate::test_evaluating_elsewhere_leaves_the_model_as_it_was"),
    # A finished run put to use
    m("trained.py", "weights of anybody", "if hashlib.sha256(content).hexdigest() != written:", "if not content:",
      "trained::test_weights_that_are_not_those_of_the_certificate_are_refused"),
    m("trained.py", "an unfinished run passes", "    if not directory.is_complete:\n", "    if False:\n",
      "trained::test_an_unfinished_run_is_refused"),
    m("trained.py", "evaluation passes for covered", '"left_out": left_out, "covered": False}',
      '"left_out": left_out, "covered": True}', "trained::test_evaluation_counts_what_it_says"),
    m("exporting.py", "paths of the machine in a file", "    _forget_source(proto)\n", "",
      "exporting::test_a_file_has_nothing_of_the_machine_and_nothing_of_a_checkpoint"),
    m("tuning/closing.py", "what was public is lost",
      "*([] if trials.asked.inputs is None else [f\"public: {', '.join(trials.asked.inputs.public)}\"]),", "",
      "trained::test_tunings_and_federations_are_loaded_too"),
    m("trained.py", "features that a stranger chose are run", "if features_run_code(name) and not trust_code:",
      "if False:", "trained::test_code_that_a_run_names_is_not_run_unless_it_is_trusted"),
    m("trained.py", "a model that a stranger chose is run", "if model_runs_code(spec) and not trust_code:",
      "if False:", "trained::test_a_model_that_a_run_names_is_not_imported_unless_it_is_trusted"),
    m("features/featured.py", "folders that bring code", "Path(rest).exists() and folders_run_code()", "False",
      "trained::test_folders_of_sentence_models_are_data_if_the_library_takes_them_so"),
    m("own_loop.py", "steps beyond the plan", "        if step >= self._steps:\n", "        if False:\n",
      "own_loop::test_a_gate_that_is_called_by_hand_keeps_to_the_plan_too"),
    m("own_loop.py", "a loop that forgets how its rows were made", "            caveat=_caveat(self.gate),\n",
      "            caveat=self.gate.terms.caveat,\n",
      "own_loop::test_how_rows_of_a_table_were_made_follows_them_into_the_certificate"),
    m("training.py", "a schema from the rows that nobody mentions", "    asked = asked.with_inputs_of(examples)\n", "",
      "own_data::test_a_schema_that_was_read_from_the_rows_voids_the_guarantee_whoever_says_so"),
    m("federated/process.py", "a federation on a schema from the rows", "super().caveat", "self.terms.caveat",
      "own_data::test_a_schema_that_was_read_from_the_rows_voids_the_guarantee_whoever_says_so"),
    m("features/featured.py", "features that wash a schema clean", "    inputs = _inputs_behind(part, features)\n",
      "    inputs = None\n", "own_data::test_features_do_not_undo_how_their_rows_were_made"),
    m("runs/options.py", "inputs that wash rows clean", "if what is not None and what not in (",
      "if False and what not in (",
      "own_data::test_inputs_that_are_given_do_not_undo_what_the_rows_say"),
    m("data/canaries.py", "an audit forgets how its rows were made",
      ", self.inputs = real.may_draw_randomness, real.inputs",
      " = real.may_draw_randomness",
      "run_auditing::test_an_audit_says_how_the_rows_of_a_table_were_made"),
    m("data/npz.py", "a row without a target passes for another", "        if self._known is not None:  # what cannot",
      "        if False:  # what cannot", "data_npz::test_a_row_without_a_target_is_another_row_to_a_fingerprint"),
    m("estimators.py", "one cell of text stops a fit on polars",
      "if not (column.dtype.is_float() or column.dtype.is_integer()):", "if False:",
      "estimators::test_text_in_a_frame_of_polars_is_read_cell_by_cell_and_quoted_nowhere"),
    m("data/inputs.py", "bounds whose distance is no number",
      "-LARGEST_BOUND <= low < high <= LARGEST_BOUND and (high - low) / 2 > 0", "low < high", "data_npz", "estimators"),
    m("data/private_bounds.py", "paid for a bound that cannot be found", "    _check_within_grid(schema, numbers)\n",
      "", "data_private_bounds"),
    m("own_loop.py", "a certificate whatever was released", "        self._check_within_plan()\n", "",
      "own_loop::test_what_was_released_beyond_the_plan_gets_no_certificate"),
    m("own_loop.py", "a loop that nobody counts", "    gate.payer = Payer(account, gate.terms)\n", "",
      "own_loop::test_a_ledger_counts_the_plan_before_the_first_step"),
    m("estimators.py", "a label that is no class stops a fit", "places.get(label, -1)", "places[label]",
      "estimators::test_what_is_wrong_with_a_row_stops_nothing"),
    m("estimators.py", "scikit-learn quotes a cell", "if any(words in str(error) for words in _QUOTES_NOTHING):",
      "if True:", "estimators::test_what_scikit_learn_says_is_passed_on_if_it_quotes_nobody"),
    m("estimators.py", "a cell that is no number stops a fit", "    except (TypeError, ValueError, OverflowError):\n",
      "    except RecursionError:\n", "estimators::test_no_cell_is_quoted"),
    m("estimators.py", "one label makes text of all", "    if not isinstance(labels, list | tuple):\n",
      "    if True:\n", "estimators::test_one_label_that_is_none_leaves_the_others_as_they_are"),
    m("estimators.py", "anything may stand in front", "        if not _is_public(step):\n", "        if False:\n",
      "estimators::test_what_learns_from_rows_may_not_stand_in_front"),
    m("data/npz.py", "bounds that do not bound", ".clamp(low, high) - low)", " - low)",
      "estimators::test_bounds_are_public_numbers_that_clip_and_scale"),
    # What is released besides the training
    m("terms.py", "bounds are free", "lambda z: compose([besides, self.cost_with(z)])", "lambda z: self.cost_with(z)",
      "runs_before"),
    m("runs/spending.py", "what came before is not stated", "return compose([*self._in_front, event])", "return event",
      "runs_before"),
    m("privacy/renyi.py", "deltas of pieces are not taken off", "left = delta - aside\n    if left < 0",
      "left = delta\n    if left < 0", "privacy_epsilon_delta"),
    m("privacy/renyi.py", "the RDP of a piece at half its epsilon", "return pure_rdp(leaf.epsilon, np.array(orders))",
      "return pure_rdp(leaf.epsilon / 2, np.array(orders))", "privacy_epsilon_delta"),
    m("privacy/loss_distribution.py", "pieces left out of the distribution", "for leaf, count in [*sampled, *pieces]:",
      "for leaf, count in [*sampled, *pieces[:0]]:", "privacy_epsilon_delta"),
    m("privacy/counts.py", "counts with half their noise", "return sensitivity / check_epsilon(epsilon) * (1 + _HAIR)",
      "return sensitivity / check_epsilon(epsilon) / 2", "privacy_counts"),
    m("privacy/counts.py", "a threshold by what OpenDP says", "math.exp(-(threshold - sensitivity) / scale)",
      "math.exp(-(threshold + 1 - sensitivity) / scale)", "privacy_counts"),
    m("privacy/counts.py", "a zero byte ends a value", 'return key.encode("utf-8", "surrogatepass").hex()',
      'return key.encode("utf-8", "surrogatepass").split(b"\\0")[0].hex()', "privacy_counts"),
    m("data/reading.py", "held-out rows chosen by their targets", "    found.chosen_by_content = True",
      "    found.chosen_by_content = False", "runs_noisy_metrics"),
    m("data/private_bounds.py", "paid when it was looked at",
      "    pay(event, words)\n    counted = _Counted(numbers, categories, rows_per_user)\n",
      "    counted = _Counted(numbers, categories, None)\n    list(columns.batches(read))\n    pay(event, words)\n",
      "data_private_bounds"),
    m("data/private_bounds.py", "every column has all of epsilon",
      "(len(counted.numbers) + len(counted.categories)) * (1 - 1e-12)", "1", "data_private_bounds"),
    m("data/private_bounds.py", "all rows of a user count", "user != 0 and self.seen[user] <= self.rows_per_user",
      "user != 0", "data_private_bounds"),
    m("runs/conductor.py", "held-out rows are counted again", "if kept is not None and kept.exists():", "if False:",
      "runs_before"),
    m("runs/noisy_metrics.py", "an error is as small as one count", "sensitivity = 1 if self._classes else GRID",
      "sensitivity = 1", "runs_noisy_metrics"),
    m("ledger/statement.py", "pieces of runs are free",
      "spent.add(unit, curve_from(curve_at(entries, entry)), times, pieces)",
      "spent.add(unit, curve_from(curve_at(entries, entry)), times)", "runs_before"),
    m("ledger/statement.py", "an epsilon of a run without its pieces", "    if not pieces:\n", "    if True:\n",
      "runs_before"),
    m("ledger/verification.py", "pieces may be taken out of an entry",
      "    return speaks and pieces_to_json(", "    return False and pieces_to_json(", "runs_before"),
    m("ledger/account.py", "closed without a piece that was paid",
      " or beyond(parted_pieces(total), parted_pieces(spent))\n", "\n", "runs_before"),
    m("verifying/evidence.py", "bounds may be cut out of a certificate",
      'if known[0].before != stated.get("before"):', "if False:", "runs_before"),
    m("verifying/evidence.py", "a caveat may be cut out of a certificate",
      'if beside and not document["claim"]["caveat"]:', "if False:", "runs_before"),
    m("tuning/counting.py", "a ledger does not hear what a tuning was prepared with",
      "caveats = [*plan.caveats, inputs_caveat(asked.inputs),", "caveats = [*plan.caveats,", "runs_before"),
    m("runs/counting.py", "a ledger does not hear what came before",
      "before=None if plan.before is None else plan.before.run,", "before=None,", "runs_before"),
    m("runs/counting.py", "an account and its run differ on what came before", "    if said != run:\n",
      "    if False:\n", "runs_before"),
    m("ledger/book.py", "anything may have come before a run",
      "if before is not None and not is_preparation(entries.of_run(before), name):", "if False:", "runs_before"),
    m("ledger/verification.py", "a ledger may name anything before a run",
      "if before is not None and not is_preparation(payments.get(before, []), entry.data):", "if False:",
      "runs_before"),
    m("cli/private_bounds.py", "bounds are paid before the run is rehearsed",
      '        rehearse(known, Before(cost, "a rehearsal"))\n', "        pass\n", "cli_private_bounds"),
    m("cli/private_bounds.py", "bounds are paid for what is refused anyway",
      "    if epsilon is None:\n        return\n    from sordino.models", "    return\n    from sordino.models",
      "cli_private_bounds"),
    # Ledger
    m("ledger/pricing.py", "two hops counted as one",
      "(orders - 0.5) / (orders - 1) * at(2 * orders) + at(2 * orders - 1)",
      "at(2 * orders)", "ledger::test_two_hops_bound_the_divergence_of_shifted_gaussians"),
    m("ledger/pricing.py", "delta kept aside is spent as well",
      "return epsilon_from_rdp(rdp, self.delta - self.aside,", "return epsilon_from_rdp(rdp, self.delta,",
      "ledger::test_delta_kept_aside_is_not_spent_on_runs_as_well"),
    m("ledger/pricing.py", "examples bound users", "return None  # a user may have any number of examples",
      "pass", "ledger::test_what_protects_examples_says_nothing_about_users"),
    m("ledger/pricing.py", "an epsilon where no delta is known",
      "return math.inf if added is None and not np.isfinite(self.about(unit)[0]).any() else added",
      "return self.epsilon(unit, 0.5)", "ledger::test_pure_pieces_add_up_without_a_delta"),
    m("ledger/chain.py", "hashes do not hang together", "% (before, names, text, priced,",
      "% (NOTHING, names, text, priced,",
      "ledger::test_a_chain_made_anew_has_another_head_than_the_one_outside"),
    m("ledger/chain.py", "the short chain has a gap",
      "if entry.digest_after(before) != entry.digest or entry.since != since:",
      "if entry.digest_after(before) != entry.digest:",
      "ledger::test_a_payment_that_is_left_out_of_the_short_chain_is_still_in_the_long_one",
      "ledger::test_the_last_entry_before_a_payment_cannot_be_left_out"),
    m("ledger/chain.py", "counted, and told that it was not",
      "with suppress(OSError):\n            self._write(now", "with suppress():\n            self._write(now",
      "ledger::test_a_head_that_cannot_be_settled_was_announced"),
    m("ledger/file.py", "an edited ledger admits", "        self._refuse(broken_short_link(found))\n", "",
      "ledger::test_nothing_is_admitted_by_a_ledger_that_was_edited"),
    m("ledger/file.py", "an edited price is believed",
      "if row is None or hashlib.sha256(row[0]).digest() != price:", "if row is None:",
      "ledger::test_nothing_is_admitted_by_a_ledger_that_was_edited"),
    m("ledger/file.py", "two writers at once",
      'connection.execute("BEGIN IMMEDIATE")\n                self._check',
      'connection.execute("BEGIN")\n                self._check',
      "ledger::test_of_sixteen_processes_at_once_exactly_as_many_are_admitted_as_fit"),
    m("ledger/file.py", "whoever waits keeps others from committing",
      '                connection.execute("BEGIN IMMEDIATE")\n                self._check',
      '                connection.execute("PRAGMA locking_mode = EXCLUSIVE")\n'
      '                connection.execute("BEGIN IMMEDIATE")\n                self._check',
      "ledger::test_of_sixteen_processes_at_once_exactly_as_many_are_admitted_as_fit"),
    m("ledger/file.py", "a traceback keeps the lock", "            cursor.close()\n", "            pass\n",
      "ledger::test_an_error_that_is_kept_does_not_keep_the_lock"),
    m("ledger/account.py", "a closed run goes on",
      "            if is_closed(found):\n                raise LedgerError(\n",
      "            if False:\n                raise LedgerError(\n",
      "ledger::test_what_is_reserved_counts_until_it_is_closed"),
    m("ledger/account.py", "closed with less than was spent", "    return bool((total < spent * (1 - 1e-9)).any())",
      "    return False", "ledger::test_a_run_is_never_closed_with_less_than_it_has_spent"),
    m("ledger/book.py", "a selection closed by hand", "        if may_cost_less(found):\n", "        if False:\n",
      "ledger::test_a_selection_is_not_closed_by_hand"),
    m("ledger/book.py", "a name in capitals has a budget of its own", "if _folded(other) == _folded(name):",
      "if False:",
      "ledger::test_a_name_in_other_letters_opens_no_fresh_budget"),
    m("ledger/statement.py", "what is reserved does not count",
      "        folded[unit, price] += 1\n", "        folded[unit, price] += entry.kind == 'close'\n",
      "ledger::test_what_a_cap_admits_is_what_its_one_order_allows"),
    m("ledger/statement.py", "equal runs count once", "curve_at(entries, entry)), times, pieces)",
      "curve_at(entries, entry)), 1, pieces)", "ledger::test_plans_compose_and_do_not_add_up_as_epsilons"),
    m("runs/counting.py", "paid after the release", "        if step < self._paid:", "        if step <= self._paid:",
      "ledger::test_a_run_pays_ahead_and_never_behind"),
    m("runs/counting.py", "two runs on one account are charged once", "None if ours else process.door)", "None)",
      "ledger::test_two_runs_on_one_account_are_two_releases"),
    m("runs/counting.py", "users' account pays for examples",
      "    account.check(None if plan.data == UNNAMED else plan.data, plan.unit)\n", "",
      "ledger::test_an_account_pays_for_its_own_data_and_unit_alone"),
    # Gradients
    m("gradients/factors.py", "norm of a product not squared",
      "return (row_norms(self.inputs_Bd) * self.grad_norms()).square_()",
      "return row_norms(self.inputs_Bd) * self.grad_norms()",
      "gradients_rules::test_linear_by_gram_and_by_dense_gradients",
      "gradients_engine::test_groups_are_the_unit"),
    m("gradients/factors.py", "cancelling positions not made", "_CANCELLATION = CANCELLING**-2",
      "_CANCELLATION = 0.0", "bounds_as_computed::test_examples_that_cancel_are_summed_as_they_are",
      "bounds_as_computed"),
    m("gradients/bounds.py", "squares that vanish", "small = norms < _SMALL", "small = norms < 0.0",
      "bounds_as_computed::test_norms_are_never_too_small"),
    m("gradients/bounds.py", "units beyond single precision", "MOST_UNITS = 256", "MOST_UNITS = 2**20",
      "bounds_as_computed"),
    m("gradients/engine.py", "infinite gradient kept", "keep = square_U <= _LARGEST_SQUARE",
      "keep = square_U >= 0",
      "gradients_engine::test_gradients_that_overflow_count_as_zero"),
    m("gradients/engine.py", "group cut in two", "if stop > start and stop + members - start > size:",
      "if stop > start and stop - start >= size:\n"
      "            start = stop - 1\n"
      "        if stop > start and stop - start > size:", "gradients_engine::test_groups_are_the_unit"),
    m("gradients/engine.py", "row that fails counts", "                    factor.mask(fine)\n",
      "                    pass\n",
      "rows_do_not_move_others::test_a_row_that_fails_on_the_way_back_counts_as_zero_and_moves_nobody"),
    m("gradients/linear.py", "bias of the first position", "Dense(factor.grads_BTp.sum(1))",
      "Dense(factor.grads_BTp[:, 0])", "gradients_rules::test_linear"),
    m("gradients/embedding.py", "padding trained",
      "grad = grad.masked_fill((input == padding)[..., None], 0.0)", "pass",
      "gradients_rules::test_embedding_of_padding_only_has_no_gradient"),
    m("gradients/normalisation.py", "scale sees the plain input", "per_example(grad * normalised,",
      "per_example(grad * held,", "gradients_rules::test_layer_norm"),
    m("gradients/convolution.py", "odd padding at the wrong end",
      "return [t // 2 for t in totals], [t - t // 2 for t in totals]",
      "return [t - t // 2 for t in totals], [t // 2 for t in totals]",
      "gradients_rules::test_convolution_with_more_padding_at_the_end"),
    m("gradients/recurrent.py", "update gate the other way", "return (new + update * (state[0] - new),)",
      "return (state[0] + update * (new - state[0]),)", "gradients_rules::test_recurrent"),
    m("gradients/attention.py", "scores not scaled", "scores = (q * q.shape[-1] ** -0.5) @ k.mT", "scores = q @ k.mT",
      "gradients_rules::test_attention"),
    m("gradients/broadcast.py", "shift of the first position",
      "summed = summed.sum(1) if summed.shape[1] > 1 else summed[:, 0]", "summed = summed[:, 0]",
      "gradients_rules::test_uses_of_parameters"),
    m("gradients/refuse.py", "batch statistics in evaluation",
      "if module.training or not module.track_running_stats:", "if module.training:",
      "gradients_engine::test_layers_refused_by_name_before_any_data"),
    m("gradients/examine.py", "mixing not refused", "mixed = mixed or not torch.allclose(",
      "mixed = mixed and not torch.allclose(",
      "gradients_engine::test_a_model_that_mixes_examples_is_refused"),
    m("gradients/fallback.py", "random numbers shared", "torch.manual_seed(first + i)", "pass",
      "rows_do_not_move_others::test_random_numbers_of_a_row_in_a_loop_are_its_own"),
    # Clipping
    m("clipping/policy.py", "clipped to 1", "torch.clamp(norms_U, min=threshold)",
      "torch.clamp(norms_U, min=1.0)", "clipping"),
    m("clipping/fixed.py", "each layer the whole threshold", "each = [total / math.sqrt(count)] * count",
      "each = [total] * count", "clipping"),
    m("clipping/quantile.py", "half the noise of the count", "multiplier=2 * noise", "multiplier=noise",
      "clipping"),
    m("clipping/quantile.py", "threshold runs away", "math.exp(-self.speed * (within",
      "math.exp(self.speed * (within", "clipping"),
    m("clipping/online.py", "q of sensitivity C", "clip_U / threshold, 0.0)", "clip_U, 0.0)", "clipping"),
    # Noise
    m("noise/independent.py", "noise without C", "std = noise_multiplier * threshold",
      "std = noise_multiplier", "gate::test_the_noise_that_leaves_has_the_size_that_is_charged"),
    m("noise/independent.py", "probes for nothing",
      "left = noise_multiplier**-2 - sum(z**-2 for z in probe_multipliers)", "left = noise_multiplier**-2",
      "clipping", "noise_gaussian"),
    m("noise/gaussian.py", "half the variance", ".mul_(-2.0 * std * std)", ".mul_(-1.0 * std * std)",
      "noise_gaussian"),
    m("noise/gaussian.py", "tail ends", "return 2.0**-52 * (deepened(fine, tail) if fine < _FINE else fine)",
      "return uniform", "noise_grid"),
    m("noise/randomness.py", "same noise every step", 'nonce = self._step.to_bytes(8, "big") + bytes(8)',
      "nonce = bytes(16)", "noise_randomness"),
    m("noise/grid.py", "noise off the grid", ".mul(1 / grid).round_()", ".mul(1 / grid)", "noise_grid"),
    m("noise/tree.py", "node of the last threshold", "            std = max(std, old)\n", "", "noise_tree"),
    m("noise/tree.py", "estimate of the wrong height", "return 1 / (2 - 2.0**-height)",
      "return 1 / (2 - 2.0 ** -(height + 1))", "noise_tree"),
    m("noise/tree.py", "probes of a tree paid once", "squares += visits * sum(", "squares += sum(",
      "noise_tree"),
    m("noise/mechanism.py", "shuffled inside a tree",
      "return sampling.shuffled_every(None if restart is None else restart // per_epoch)", "return sampling",
      "noise_tree", "training::test_a_tree_run_pays_by_the_tree_and_keeps_its_budget"),
    # Steps and rates
    m("steps/sgd.py", "momentum as an average", "add_(released.gradient)\n",
      "add_(released.gradient, alpha=1 - self.momentum)\n", "steps"),
    m("steps/adam.py", "first moment not corrected", "scale.mul_(1 - self.beta1**t)", "scale", "steps"),
    m("steps/extrapolation.py", "step never taken back", "if before is not None and not error <= limit:",
      "if False:", "steps"),
    m("steps/extrapolation.py", "absolute error", "size = full.abs().clamp_min_(1)",
      "size = torch.ones_like(full)", "steps"),
    m("steps/ftrl.py", "fresh start only once", 'state["left"] = state["restart"]', 'state["left"] = None',
      "steps"),
    m("rates/tolerance.py", "rate grows with the error", 'ratio = state["tol"] / result.error',
      'ratio = result.error / state["tol"]', "rates"),
    m("rates/travel.py", "mean of one gradient too few", '(state["steps"] + 1)\n', 'max(1, state["steps"])\n',
      "rates"),
    m("rates/distance.py", "distance forgets", '"distance": max(state["distance"], moved),',
      '"distance": moved,', "rates"),
    m("rates/fixed.py", "schedule a step ahead", "(step - rising) / max(1.0", "(step + 1 - rising) / max(1.0",
      "rates"),
    m("rates/hypergradient.py", "velocity not copied", "direction = direction.clone()", "pass", "rates"),
    m("hypergradient.py", "rate climbs its loss", "math.exp(speed * ((product > 0) - (product < 0)))",
      "math.exp(speed * ((product < 0) - (product > 0)))", "rates", "clipping"),
    # Privacy
    m("privacy/trees.py", "participations not squared", "common += int((counts**2).sum())",
      "common += int(counts.sum())", "privacy_trees"),
    m("privacy/trees.py", "separation one short", "min_separation, least=0) + 1", "min_separation, least=0)",
      "privacy_trees"),
    m("privacy/renyi.py", "divergence of the wrong order", "rdp: Vector = log_a / (orders - 1)",
      "rdp: Vector = log_a / orders", "privacy_accountants"),
    m("privacy/accountants.py", "moments converted as today",
      'epsilon_from_rdp(rdp, delta, "basic", MOMENTS_ORDERS)',
      'epsilon_from_rdp(rdp, delta, "improved", MOMENTS_ORDERS)', "privacy_accountants"),
    m("privacy/loss_distribution.py", "one plain Gaussian for many",
      "return math.fsum(count / leaf.noise_multiplier**2 for leaf, count in parts)",
      "return math.fsum(1 / leaf.noise_multiplier**2 for leaf, count in parts)", "privacy_accountants"),
    m("privacy/events.py", "substitution moves by C", "release = gaussian(noise_multiplier / 2)",
      "release = gaussian(noise_multiplier)", "privacy_events"),
    m("privacy/ledger.py", "two releases under one key", "if found != index:", "if found < 0:",
      "privacy_ledger"),
    m("privacy/calibration.py", "a little over budget", "        if epsilon <= target:\n            enough",
      "        if epsilon <= 1.01 * target:\n            enough",
      "privacy_calibration::test_golden_noise_of_grids_composed_honestly"),
    m("privacy/certificate.py", "epsilon rounded", "rounding=ROUND_CEILING", 'rounding="ROUND_HALF_EVEN"',
      "privacy_certificate"),
    m("privacy/tails.py", "one coordinate of a pair", "ncx2.sf(reach**2, 2,", "ncx2.sf(reach**2, 1,",
      "noise_grid"),
    m("privacy/one_run.py", "half of what delta may do", "2 * seen.canaries * delta", "seen.canaries * delta",
      "privacy_one_run"),
    m("privacy/one_run.py", "delta of the guesses alone", "2 * seen.canaries * delta", "2 * seen.made * delta",
      "privacy_one_run"),
    m("privacy/one_run.py", "the best number of guesses for free", "each = error / len(SHARES)", "each = error",
      "privacy_one_run::test_every_choice_is_paid_for"),
    m("privacy/one_run.py", "three ways for the price of one", "error = (1 - confidence) / ways",
      "error = 1 - confidence", "privacy_one_run::test_every_choice_is_paid_for"),
    m("privacy/one_run.py", "one right guess too many", "for number in range(seen.right - 1, -1, -1):",
      "for number in range(seen.right, -1, -1):", "privacy_one_run"),
    m("privacy/one_run.py", "a curve above the claim", "max(found, (right - delta) / factor,",
      "max(found, right / factor,", "privacy_one_run"),
    m("privacy/audit.py", "bound on the rate of too few", "betaincinv(counts + 1,", "betaincinv(counts,",
      "privacy_audit"),
    m("privacy/wording.py", "a seed voids nothing",
      "return math.isfinite(epsilon) and not seeded and caveat is None", "return math.isfinite(epsilon)",
      "verifying"),
    m("privacy/sealing.py", "any signature will do",
      'known.verify(bytes.fromhex(signature["value"]), signed_message(document))', "pass", "verifying"),
    m("privacy/sealing.py", "a digest of nothing", "if name not in _SEAL}\n    return", "if name in _SEAL}\n    return",
      "verifying"),
    # Verifying
    m("verifying/verification.py", "digest believed", 'if document["digest"] != digest_of(document):', "if False:",
      "verifying"),
    m("verifying/verification.py", "any signer will do", 'elif wanted is not None and signed["public_key"] != wanted:',
      "elif False:", "verifying"),
    m("verifying/numbers.py", "epsilon believed", "if not same(claimed, found.epsilon):", "if False:", "verifying"),
    m("verifying/numbers.py", "our accountants are always right",
      "return claimed < bound * (1 - SAME) - 1e-9", "return False", "verifying"),
    m("verifying/numbers.py", "profile believed",
      'if not same(float(point["epsilon"]), float(found["epsilon"])):', "if False:", "verifying"),
    m("verifying/evidence.py", "model believed", 'if found != stated["sha256"]:', "if False:", "verifying"),
    m("verifying/evidence.py", "a ledger cut at the end passes",
      'if not ledger.holds(stated["length"], stated["head"]):', "if False:", "verifying"),
    m("verifying/evidence.py", "what the ledger counted is not looked at",
      "if not _same_events(record.event, event):", "if False:", "verifying"),
    m("verifying/reading.py", "the second of two wins", "if name in found:", "if False:", "verifying"),
    m("runs/closing.py", "a hash of nothing",
      "model = None if directory is None else directory.write_model(process.model)",
      "model = None if directory is None else {**directory.write_model(process.model), 'sha256': 64 * '0'}",
      "verifying"),
    # Data
    m("data/sampling.py", "shuffled passes for Poisson",
      "return self.batch_size / n if self.assume_poisson else None", "return self.batch_size / n",
      "data_sampling"),
    m("data/sampling.py", "units come back a step early", "return self.separation + 1",
      "return self.separation", "data_sampling"),
    m("data/groups.py", "nobody's rows are somebody",
      'if ids.dtype.kind == "f" and not np.isfinite(ids).all():', "if False:", "data_groups"),
    m("data/partitions.py", "always the first users", "np.sort(chance.permutation(len(found))[:clients])",
      "range(clients)", "data_partitions"),
    m("data/npz.py", "scaled by the rows", "inputs.div_(255)", "inputs.div_(inputs.max())", "data_npz"),
    m("data/sources.py", "row twice in a subset", "if len(torch.unique(rows)) < rows.numel():", "if False:",
      "data_sources"),
    m("data/chance.py", "generator not given back", "np.random.set_state(before[2])", "pass", "data_sources"),
    m("data/download.py", "damaged file kept", "if digest.hexdigest() != md5:", "if False:",
      "data_named::test_a_wrong_checksum_leaves_nothing_behind"),
    # The gate
    m("gate.py", "charged after the sums",
      "        self.ledger.charge(f\"{self.charged_as}/{key}\", event)  # first, whatever happens\n"
      "        self.step += 1\n"
      "        probes = self.clip.probes(self.noise_multiplier, self.expected_batch)\n"
      "        vectors = 1 + sum(p.vector for p in probes)\n"
      "        sums, numbers = self._sums_at(at, vectors, len(probes) + 1 - vectors, step)\n",
      "        self.step += 1\n"
      "        probes = self.clip.probes(self.noise_multiplier, self.expected_batch)\n"
      "        vectors = 1 + sum(p.vector for p in probes)\n"
      "        sums, numbers = self._sums_at(at, vectors, len(probes) + 1 - vectors, step)\n"
      "        self.ledger.charge(f\"{self.charged_as}/{key}\", event)\n",
      "gate::test_the_charge_comes_before_the_data"),
    m("gate.py", "divided by all units", "return total.to(torch.float32).div_(self.expected_batch)",
      "return total.to(torch.float32).div_(self.units)",
      "gate::test_the_divisor_is_the_expected_batch_never_the_realised_one"),
    m("gate.py", "two threads at once", "with self._one_at_a_time:", "with nullcontext():",
      "rows_do_not_move_others::test_threads_take_turns"),
    m("gate.py", "fork repeats the noise", "if os.getpid() != self._process:", "if False:",
      "rows_do_not_move_others::test_a_gate_refuses_another_process"),
    m("gate.py", "no room for rounding", "return ROOM if self.noise_multiplier else 0.0", "return 0.0",
      "bounds_as_computed"),
    m("gate.py", "probe noised like the gradient", 'f"noise:{probe.name}"', '"noise"',
      "gate::test_the_noise_on_gradient_and_q_is_what_proposition_1_says"),
    # Runs
    m("runs/resume.py", "marks a step early", "round(steps * (i + 1) / count)", "round((steps - 1) * (i + 1) / count)",
      "runs_resume"),
    m("runs/resume.py", "constants not restored", 'value.copy_(found.state["constants"][name])', "pass",
      "training::test_frozen_parts_come_back_on_resume"),
    m("runs/journal.py", "other release not noticed", "elif known != digest:", "elif known is digest:",
      "runs_journal"),
    m("runs/lock.py", "lock that is shared", "fcntl.LOCK_EX | fcntl.LOCK_NB", "fcntl.LOCK_SH | fcntl.LOCK_NB",
      "runs_lock"),
    m("runs/writing.py", "half a line is read", 'whole = content.rfind(b"\\n") + 1', "whole = len(content)",
      "runs_writing"),
    m("runs/checkpoint.py", "key for everybody", "mode=0o600)", "mode=0o644)", "runs_checkpoint"),
    m("runs/closing.py", "seconds to the millisecond", "    if not private:\n", "    if True:\n",
      "runs_closing"),
    m("runs/directory.py", "key of a finished run kept",
      'if "sordino_version" in summary and not summary.get("checkpoint_kept"):', "if False:",
      "runs_directory"),
    m("runs/spending.py", "the ledger is believed", "if ledger.event != event:", "if False:", "runs_spending"),
    # The hallway
    m("terms.py", "probes not in the plan",
      "return self.releases.cost(self.steps, multiplier, self._probe_multipliers(multiplier))",
      "return self.releases.cost(self.steps, multiplier, ())", "runs_spending"),
    # Tuning
    m("privacy/selection.py", "the number of runs costs nothing",
      "found = rdp + math.log(mean) / (orders - 1) + constant", "found = rdp + constant", "privacy_selection"),
    m("privacy/selection.py", "delta for one run and not for all", "first = epsilon_of(delta / mean)",
      "first = epsilon_of(delta)", "privacy_selection"),
    m("privacy/selection.py", "the score is not asked who wins", "first + (1 + shape) * _largest_log_ratio",
      "first + shape * _largest_log_ratio", "privacy_selection"),
    m("tuning/score.py", "a score without noise", "        if multiplier:\n", "        if False:\n", "tuning"),
    m("tuning/score.py", "a row worth more than one", ".clamp(0.0, 1.0)", "", "tuning"),
    m("tuning/score.py", "users count by their rows", "(sums / torch.bincount(members.groups)).sum()", "sums.sum()",
      "tuning"),
    m("tuning/plan.py", "scores are free", "scored = [] if score.event is None else", "scored = [] if True else",
      "tuning"),
    m("tuning/plan.py", "candidates of other costs", "if cost != costs[first]:", "if False:", "tuning"),
    m("tuning/trials.py", "a selection that is not paid", "        trials.account.spend(\"selection\", plan.event)",
      "        pass", "tuning"),
    m("tuning/trials.py", "losers say that they diverged", "            warnings.simplefilter(\"ignore\")  # that",
      "            pass  # that", "tuning"),
    m("tuning/trials.py", "losers stay", "            shutil.rmtree(path)\n", "            pass\n", "tuning"),
    m("tuning/giving_up.py", "an abandoned selection is one",
      "if standing.pinned[\"protocol\"] == \"selection\" else None)", "if False else None)", "tuning"),
    m("tuning/giving_up.py", "a finished one is abandoned", "if (directory.path / CERTIFICATE).exists():", "if False:",
      "tuning"),
    m("tuning/plan.py", "candidates compared at other noise",
      "        _check_alike(candidates, outlines, multiplier)  # probes may follow the noise\n", "", "tuning"),
    m("tuning/plan.py", "scores eat the budget", "_OF_SCORES = 0.25", "_OF_SCORES = 0.9", "tuning"),
    m("tuning/score.py", "rows with a say in others", "if not torch.allclose(alone,",
      "if False and not torch.allclose(alone,", "tuning"),
    m("tuning/trials.py", "whatever lies there is a candidate", "if events != planned or", "if False and", "tuning"),
    m("tuning/trials.py", "keys of candidates stay",
      "        delete_checkpoint(folder_of(directory, number) / \"checkpoint\")\n", "", "tuning"),
    m("tuning/opening.py", "other users", '"groups": members.fingerprint(key),', "", "tuning"),
    m("ledger/account.py", "how long a selection took", "if may_cost_less(found) else now()", "if False else now()",
      "tuning"),
    m("verifying/numbers.py", "a selection nobody keeps secret",
      "if secret and SELECTION_IS_SECRET not in", "if False and SELECTION_IS_SECRET not in", "tuning"),
    m("verifying/evidence.py", "what was not paid yet", 'if not ledger.had_paid(stated["run"], stated["length"]):',
      "if False:", "tuning"),
    m("terms.py", "noise without clipping", "if self.multiplier and not math.isfinite(",
      "if False and not math.isfinite(",
      "gate", "federated_user_level"),
    m("runs/conductor.py", "resume starts anew", "            process.restore(saved.process)\n", "",
      "training::test_an_interrupted_run_goes_on_bit_for_bit"),
    m("runs/conductor.py", "no journal", "            process.door.journal = self.journal\n", "", "runs_journal"),
    m("runs/conductor.py", "shown before it is on the disk",
      "            self.journal.sync()  # before anything that follows from a release is shown\n", "            pass\n",
      "runs_journal"),
    m("runs/conductor.py", "another plan goes on", "            check_same_plan(", "            str(", "training"),
    m("runs/conductor.py", "scores that seem covered",
      'line |= {**self.process.measured(), "covered": False}', "line |= {**self.process.measured()}", "runs_closing"),
    m("gate.py", "a seed beside secure", "if terms.secure and streams.seeded:", "if False:", "gate"),
    m("runs/closing.py", "key left behind", "if not recording.asked.keep_checkpoint:", "if False:", "training"),
    m("descent.py", "threshold never adapts", "self.gate.adapt(*result.gradients)",
      "result.gradients", "method_oracles"),
    m("descent.py", "average starts anew", "            self._average.copy_(state[\"average\"])\n",
      "            pass\n",
      "training::test_methods_that_adapt_go_on_bit_for_bit"),
    m("descent.py", "prior left out", "gradient=released.gradient + public_gradient(self._public_loss, theta)",
      "gradient=released.gradient", "training"),
    m("tasks.py", "two scores for one regression", "outputs if limit is None else outputs.clamp(-limit, limit)",
      "outputs", "trained"),
    m("tasks.py", "only the last batch counts", "[one + other for one, other in", "[other for one, other in", "tasks"),
    m("registry.py", "true is a number", "if isinstance(value, int) and not isinstance(value, bool):",
      "if isinstance(value, int):", "methods", "named"),
    m("named.py", "no privacy by name", '"dp-sgd": Entry("methods:dp_sgd"', '"dp-sgd": Entry("methods:sgd"', "methods",
      "named"),
    m("described.py", "rows written down", 'return f"{len(part)} values"', "return list(part)", "described"),
    m("warn.py", "our own line", "stacklevel=level)", "stacklevel=1)", "training", "runs_conductor"),
    m("cache.py", "cache in the way", 'os.environ.get("XDG_CACHE_HOME")', 'os.environ.get("HOME")',
      "privacy_remembered", "data_named"),
    # Federations
    m("federated/aggregate.py", "realised divisor", "            sent.now.participants,\n", "            1.0,\n",
      "federated_user_level"),
    m("federated/user_level.py", "a failed round is repeated", "self.somebody_failed |= bool(part.failed)",
      "self.somebody_failed |= False", "federate", "federated_user_level", "nothing_visible"),
    m("federated/process.py", "server starts anew", '        self._server.update(state["server"])\n', "", "federate"),
    m("federated/process.py", "what clients keep is lost", "        self._store.commit()\n", "", "federate",
      "federated_rounds"),
    m("federated/machinery.py", "clients wait for each other", "(private and means.patience is not None)", "False",
      "federated_user_level", "federated_pool"),
    m("federated/algorithms/adabest.py", "correction never fades",
      'torch.addcdiv(update, who.states["h"], who.rounds_since)', 'update + who.states["h"]',
      "federated_algorithms"),
    m("federated/algorithms/adabest.py", "beta the other way", "mul_(self.beta)", "mul_(1 - self.beta)",
      "federated_algorithms"),
    m("federated/algorithms/feddyn.py", "server as if all came", "alpha=now.participants / now.clients)",
      "alpha=1.0)", "federated_algorithms"),
    m("federated/algorithms/scaffold.py", "sign of the variate", 'return of_server.sub_(who.states["h"])',
      'return of_server.add_(who.states["h"])', "federated_algorithms"),
    m("federated/algorithms/fedavg.py", "half a proximal term", "torch.full_like(who.examples, self.mu)",
      "torch.full_like(who.examples, self.mu / 2)", "federated_algorithms"),
    m("federated/algorithms/progressive.py", "average of the last round",
      'total = server["mean_examples"] * before + sum(examples)', "total = sum(examples)",
      "federated_algorithms"),
    m("federated/store.py", "checkpointed row written over",
      "(self._held if old in self._in_checkpoint else self._free).append(old)", "self._free.append(old)",
      "federated_store"),
    m("federated/pool.py", "results as they come", "while parts := done.get(following, []):",
      "while parts := done.get(following := min(done, default=following), []):",
      "federated_pool::test_results_come_in_the_order_of_the_chunks_however_long_each_takes"),
    m("federated/local.py", "idle client moves", "        x_Pd[idle] = kept_x\n", "", "federated_local"),
    m("federated/local.py", "rate kept within nothing", "fine = error <= self.tol", "fine = error >= 0",
      "federated_local"),
    m("federated/population.py", "short batch weighs as a whole", "= 1 / left\n", "= 1 / plan.batch_size\n",
      "federated_population"),
    m("federated/conditions.py", "late ones wait for nobody", "late = ~dropped & (times >",
      "late = dropped & (times >", "federated_conditions"),
    m("federated/engines/rules.py", "bias of the mean", "torch.sum(gradient, 1, out=found[1])",
      "torch.mean(gradient, 1, out=found[1])", "federated_engines"),
    m("federated/engines/losses.py", "left-out label counts", "weights_N.masked_fill(left_out, 0.0)",
      "weights_N", "federated_engines"),
    m("federated/engines/stacked.py", "own forward passed over",
      'return any(hooks) or "forward" in vars(layer)', "return any(hooks)", "federated_engines"),
    m("federated/engines/gradients.py", "model left where a client was",
      "            vector.theta.copy_(before)\n", "            pass\n", "federated_engines"),
    # Least squares
    m("least_squares.py", "two sums for the price of one", "squares = 2 * fixed_order_sensitivity",
      "squares = fixed_order_sensitivity", "least_squares::test_a_tree_pair_costs_one_gaussian"),
    m("least_squares.py", "targets not clipped", "np.clip(targets, -1, 1) @ rows", "targets @ rows",
      "least_squares::test_one_row_moves_the_sums_by_no_more_than_their_noise_is_for"),
    m("least_squares.py", "target that is no number counts", "np.isfinite(rows).all(1) & np.isfinite(targets)",
      "np.isfinite(rows).all(1)",
      "least_squares::test_a_row_that_is_not_finite_counts_as_zeros_and_nobody_is_told"),
    # Methods, models, audits
    m("methods.py", "gradients left out of a tree",
      "if not (self.step.uses_every_gradient or self.noise.independent):", "if False:", "methods"),
    # Features, images and texts
    m("imported.py", "a user's folder hides packages", "sys.path.append(str(folder))",
      "sys.path.insert(0, str(folder))", "imported"),
    m("features/frozen.py", "rows that mix unnoticed",
      "if not torch.allclose(of_one[0], of_one[1], rtol=1e-5, atol=1e-7, equal_nan=True):", "if False:",
      "features_featured::test_what_is_no_feature_of_a_row_is_refused_on_made_up_rows"),
    m("features/frozen.py", "random features unnoticed",
      "_of(features, rows, seed=_SEED + 1)", "_of(features, rows)",
      "features_featured::test_what_is_no_feature_of_a_row_is_refused_on_made_up_rows"),
    m("features/featured.py", "features of private rows kept on disk", "    if not public:\n", "    if False:\n",
      "features_featured::test_features_of_private_rows_are_left_nowhere"),
    m("features/featured.py", "a failing row takes its batch along",
      "yield *_one_by_one(features, whole, template, good), every", "yield good[:0], torch.zeros(0), every",
      "features_featured"),
    m("features/featured.py", "other weights unnoticed",
      "features.describe().get(\"weights\", weights) != weights", "False", "features_text"),
    m("features/scattering.py", "wavelets with a mean", "morlet = wave - wave.sum() / envelope.sum() * envelope",
      "morlet = wave", "features_scattering"),
    m("features/scattering.py", "averages without their window", "spectrum[size // 4 : size // 4 + size // 2] = 0",
      "pass", "features_scattering"),
    m("features/own.py", "a module learns from rows",
      "found.eval().requires_grad_(False)", "found.requires_grad_(False)", "features_featured"),
    m("data/images.py", "links followed", "if any(each.is_symlink() for each in (*images,",
      "if False and any(each.is_symlink() for each in (*images,", "data_images"),
    m("data/images.py", "one file as two people", "if len(seen) < len(files):", "if False:", "data_images"),
    m("data/images.py", "bombs unpacked", "if image.width * image.height > _MOST_PIXELS:", "if False:", "data_images"),
    m("data/kept.py", "a row that cannot be read takes part",
      "kept = self._readable.index_select(0, indices).nonzero().flatten()", "kept = torch.arange(len(indices))",
      "data_kept"),
    m("data/datasets.py", "a sampler's rows forgotten", "if not plain or (", "if False and (", "data_datasets"),
    m("data/datasets.py", "a row in two parts", "if len(torch.unique(every)) < len(every):", "if False:",
      "data_datasets"),
    m("data/datasets.py", "a row selected twice", "if len(torch.unique(rows)) < len(rows):", "if False:",
      "data_datasets"),
    m("models.py", "runs share a model", "return copy.deepcopy(found)", "return found", "models"),
    m("models.py", "weights by the inputs", "bound = 1 / math.sqrt(module.out_features)",
      "bound = 1 / math.sqrt(module.in_features)", "models"),
    m("auditing.py", "unit is never left out", "npt.NDArray[np.int64] = drawn[~np.isin(drawn, these)]",
      "npt.NDArray[np.int64] = drawn", "auditing::test_a_unit_that_is_zeroed_out_is_drawn_and_left_out"),
    m("run_auditing.py", "canaries are never left out", "return zeroed_out(sampling, self.places[~self.coins])",
      "return sampling", "run_auditing::test_a_canary_that_is_left_out_leaves_no_trace"),
    m("run_auditing.py", "tied canaries judged apart", 'counts=see == "releases" and not _ties(plan),',
      'counts=see == "releases",', "run_auditing::test_what_ties_canaries_together_is_not_judged_apart"),
    m("run_auditing.py", "who is drawn is given away",
      "self._coin = terms.sampling.coin if number is None else number / terms.units",
      "self._coin = terms.sampling.coin",
      "run_auditing::test_who_takes_part_is_known_where_the_price_allows_for_it"),
    m("run_auditing.py", "audit counted as a run", 'class _AuditedDescent(DescentPlan):\n    kind = "audit"',
      'class _AuditedDescent(DescentPlan):\n    kind = "run"',
      "run_auditing::test_an_audit_is_paid_for_before_anything_is_released"),
    m("run_auditing.py", "rows of others pull too", "torch.where(marks > 0, pulled, values)", "pulled + values",
      "run_auditing::test_a_canary_moves_its_own_parameter_and_nobody_else_does"),
    m("data/canaries.py", "canaries in the fingerprint", "return self._real.fingerprint(key)",
      "return super().fingerprint(key)", "data_canaries::test_an_audit_is_of_the_same_data"),
    m("auditing.py", "price not compared", "if seen.unpaid is None and event != door.plan(calls):",
      "if False:", "planted_bugs"),
    # Shown and asked for
    m("report/words.py", "not private unsaid",
      "    if not run.private:\n        return \"not private: epsilon is infinite\"\n",
      "", "report"),
    m("report/words.py", "epsilon rounded", "show_epsilon(run.epsilon or 0.0, 3)",
      'f"{run.epsilon:.3f}"', "report"),
    m("cli/common.py", "setting given twice", "if name in settings:", "if False:",
      "cli_common::test_settings_by_name_are_numbers_words_or_nothing"),
    m("cli/main.py", "mistake passes for a bug", "sys.exit(2)", "sys.exit(1)",
      "cli_train::test_bad_input_gets_one_line_and_exit_code_2"),
    m("cli/reproduce.py", "another experiment's folder", 'if there != f"{name} --{size}":', "if False:",
      "cli_reproduce"),
    m("cli/budget.py", "part of an epoch is free",
      "return math.ceil(steps / _batches_per_epoch(sampling_rate))",
      "return max(1, math.floor(steps / _batches_per_epoch(sampling_rate)))", "cli_budget"),
    m("recipes/frame.py", "results of older code", "            _code(self.function.__module__),\n", "",
      "recipes_frame"),
    # report, live
    m("report/html/tags.py", "text becomes HTML as it is",
      'return part.text if isinstance(part, Html) else escaped(part)', 'return str(part)',
      "report_html"),
    m("report/html/tags.py", "quotes are not escaped", "str(text)), quote=True)", "str(text)), quote=False)",
      "report_html"),
    m("report/html/kept.py", "the guarantee of a seeded run stands",
      'if run.summary.get("seeded") or chance.get("seeded"):', "if False:",
      "report_html"),
    m("report/html/kept.py", "an edited certificate is taken as it is",
      "    if not intact:", "    if False:",
      "report_html"),
    m("report/html/kept.py", "what was paid for in no run is called covered",
      'paid = said is True or (isinstance(said, list) and name in said)', "paid = True",
      "report_html"),
    m("report/html/measures.py", "a measure stands without its mark",
      "return joined(written(name, value), mark(cover_of(run, name)))", "return joined(written(name, value))",
      "report_html"),
    m("report/html/guarantee.py", "epsilon stands without its mark",
      'show_epsilon(epsilon, digits)}", mark(verdict.mark))', 'show_epsilon(epsilon, digits)}")',
      "report_html"),
    m("report/html/tuning.py", "a selection shows how the others did",
      'if not selected and isinstance(said.get("table"), list)', 'if isinstance(said.get("table"), list)',
      "report_html"),
    m("report/html/together.py", "runs together cost what the dearest does",
      "Total(math.fsum(epsilons), math.fsum(deltas)", "Total(max(epsilons), max(deltas)", "report_html"),
    m("report/html/together.py", "what is known by its price alone costs nothing together",
      "curve_from(curve_of(event)), pieces=pieces_of(event))", "curve_from(curve_of(event)))", "report_html"),
    m("report/html/budget.py", "metrics are nobody's share of a cap",
      ", pieces=pieces_of(each.event))", ")", "cli_report"),
    m("live.py", "what is measured is called covered",
      "covered = promised and (name in _RELEASED or paid)", "covered = promised",
      "live"),
    m("live.py", "a seeded run is said to promise something",
      'not facts.get("seeded") and', "",
      "live"),
    m("runs/closing.py", "callbacks of the owner's are not said",
      "if any(not isinstance(each, HistoryLogger) for each in recording.asked.callbacks):", "if False:",
      "live"),
    m("runs/conductor.py", "a logger that fails ends the run",
      "except Exception as error:  # a server that is gone", "except ZeroDivisionError as error:  # a server",
      "live"),
]
# fmt: on


def misplaced() -> list[str]:
    """Faults whose place in the source is gone, or is not the only one."""
    found = []
    for each in MUTATIONS:
        file = SOURCE / "sordino" / each.file
        times = file.read_text().count(each.old) if file.exists() else 0
        if times != 1:
            found.append(
                f"{each.module}: {each.name!r} has {times} places: {each.old.strip().splitlines()[0]}"
            )
    return found


def noticed(mutation: Mutation, all_tests: bool) -> tuple[str, float]:
    """caught, MISSED or TOO LONG, and the seconds that took."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sordino-mutation-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        file = copy / "sordino" / mutation.file
        file.write_text(file.read_text().replace(mutation.old, mutation.new))
        files = [str(TESTS)] if all_tests else [_path(test) for test in mutation.tests]
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider", *files]
        environment = os.environ | {
            "PYTHONPATH": str(copy), "HYPOTHESIS_STORAGE_DIRECTORY": folder, "PYTHONDONTWRITEBYTECODE": "1",
        }  # fmt: skip
        try:
            ended = subprocess.run(
                command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, timeout=_LONGEST
            )
        except subprocess.TimeoutExpired:
            return "TOO LONG", time.monotonic() - started
    if ended.returncode not in (0, 1):  # neither passed nor failed: nothing was tested
        raise RuntimeError(
            f"{mutation.module}: {mutation.name}\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}"
        )
    return ("caught" if ended.returncode else "MISSED"), time.monotonic() - started


def _path(test: str) -> str:
    file, colons, name = test.partition("::")
    return f"{TESTS / f'test_{file}.py'}{colons}{name}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("which", nargs="*", help="names, or modules such as noise or federated.store")
    parser.add_argument("--all-tests", action="store_true", help="by the whole suite, not by the named files")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time")
    parser.add_argument("--list", action="store_true", help="show what there is, and stop")
    asked = parser.parse_args()
    chosen = [
        each
        for each in MUTATIONS
        if not asked.which
        or any(word == each.name or f"{each.module}.".startswith(f"{word}.") for word in asked.which)
    ]
    if asked.list or not chosen:
        print("\n".join(f"{each.module:34s} {each.name}" for each in chosen or MUTATIONS))
        sys.exit(0 if chosen else 2)
    if gone := misplaced():
        sys.exit("\n".join(gone))
    missed = 0
    with ThreadPoolExecutor(asked.jobs) as pool:
        for each, (outcome, seconds) in zip(
            chosen, pool.map(lambda one: noticed(one, asked.all_tests), chosen), strict=True
        ):
            missed += outcome != "caught"
            print(f"{outcome:8s} {seconds:6.1f} s   {each.module:34s} {each.name}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} caught")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
