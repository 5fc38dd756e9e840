"""Every solver on every problem of the registry: against plain NumPy, a convex modelling library and the
conditions of optimality; then what must not change when the clients change names, origin, axes or units."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import registry
from registry import CASES, CLIENTS, IN, OUT, PROBLEMS, SOLVERS, Problem, optimum, solve

from clairjax import Factored, Penalty, ProximalGradient, Status, decompose
from clairjax.alignment import _factored
from clairjax.alignment._clients import DenseClients
from clairjax.alignment._program import Start, residual_weights


pytestmark = pytest.mark.skipif(not jax.config.jax_enable_x64, reason="to ten digits, which takes float64")

case = pytest.mark.parametrize(("problem_name", "solver_name"), CASES)
every_solver = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


@pytest.fixture(scope="module")
def solutions():
    """Each case solved once."""
    solved = {}

    def of(problem_name, solver_name):
        if (problem_name, solver_name) not in solved:
            solved[problem_name, solver_name] = solve(PROBLEMS[problem_name], SOLVERS[solver_name])
        return solved[problem_name, solver_name]

    return of


def low_rank_part(found, stack, omega, penalty):
    """L from what a solver reports: Z V = λ_L U with U Σ Vᵀ = L gives U_g = c_g D_g V (c_g Σ + λ_L)⁻¹.

    The blocks Û_g and the multiplier's weights c_g are returned too. Nothing is rebuilt if V, Σ or ‖R_g‖ is wrong.
    """
    pairs = np.triu_indices(CLIENTS, 1)
    norms, values = np.asarray(found.residual_norms)[pairs], np.asarray(found.singular_values)
    weights = np.minimum(omega, penalty[1] / np.maximum(norms, 1e-300))[:, None, None]
    basis = np.asarray(found.basis)
    left = weights * (stack @ basis) / (weights * values + penalty[0])
    return (left * values) @ basis.T, left, weights


@case
def test_against_plain_numpy(solutions, problem_name, solver_name):
    found, best = solutions(problem_name, solver_name), optimum(problem_name)
    assert found.status == Status.converged
    np.testing.assert_allclose(found.objective, best.objective, rtol=2 * registry.RTOL)
    np.testing.assert_allclose(found.projector, reference.projector(best.low_rank, 1e-4), atol=1e-5)
    values = np.linalg.svd(reference.flat(best.low_rank), compute_uv=False)
    width = found.singular_values.shape[0]
    np.testing.assert_allclose(found.singular_values, values[:width], atol=1e-5 * (1 + values[0]))
    assert int(found.rank) == (values > 1e-4 * PROBLEMS[problem_name].penalty[0]).sum()
    residual_norms = reference.norms(PROBLEMS[problem_name].stack - best.low_rank)
    found_norms = np.asarray(found.residual_norms)[np.triu_indices(CLIENTS, 1)]
    np.testing.assert_allclose(found_norms, residual_norms, atol=1e-5 * (1 + residual_norms.max()))
    np.testing.assert_array_equal(found.residual_norms, found.residual_norms.T)


@pytest.mark.parametrize("problem_name", PROBLEMS)
def test_against_a_convex_modelling_library(solutions, problem_name):
    problem = PROBLEMS[problem_name]
    expected = reference.convex_program(*problem)
    rank = int(solutions(problem_name, "Factored").rank)
    right = np.linalg.svd(reference.flat(expected.low_rank), full_matrices=False)[2][:rank]
    for solver_name in SOLVERS:
        if (problem_name, solver_name) in CASES:
            found = solutions(problem_name, solver_name)
            np.testing.assert_allclose(found.objective, expected.objective, rtol=1e-6)
            np.testing.assert_allclose(found.projector, right.T @ right, atol=1e-4)


@case
def test_conditions_of_optimality(solutions, problem_name, solver_name):
    """(7)'s, from what is reported alone: the objective is attained, ‖Z‖_op ≤ λ_L, and Z V = λ_L U."""
    problem, found = PROBLEMS[problem_name], solutions(problem_name, solver_name)
    (low, sparse), omega, stack = problem.penalty, problem.omega, problem.stack
    low_rank, left, weights = low_rank_part(found, stack, omega, problem.penalty)
    residual = stack - low_rank
    rank, scale = int(found.rank), reference.norms(stack).max()
    threshold = (sparse / omega)[:, None, None]
    sparse_part = residual * np.maximum(
        1 - threshold / np.maximum(reference.norms(residual), 1e-300)[:, None, None], 0
    )
    attained = reference.objective(stack, low_rank, sparse_part, problem.penalty, omega)
    np.testing.assert_allclose(attained, found.objective, rtol=1e-9)
    reported = np.asarray(found.residual_norms)[np.triu_indices(CLIENTS, 1)]
    np.testing.assert_allclose(reference.norms(residual), reported, atol=1e-5 * scale)

    multiplier = weights * residual
    assert np.linalg.norm(reference.flat(multiplier), 2) <= low * (1 + 1e-5)
    assert (reference.norms(multiplier) <= sparse * (1 + 1e-9)).all()
    columns = reference.flat(left)[:, :rank]
    np.testing.assert_allclose(columns.T @ columns, np.eye(rank), atol=1e-4)
    along = reference.flat(multiplier) @ np.asarray(found.basis)[:, :rank]
    np.testing.assert_allclose(along, low * columns, atol=1e-4 * low)


@case
def test_padding_is_exactly_zero(solutions, problem_name, solver_name):
    found = solutions(problem_name, solver_name)
    width = getattr(SOLVERS[solver_name], "max_rank", IN)
    rank = int(found.rank)
    assert found.basis.shape == (IN, width) and found.singular_values.shape == (width,)
    assert not found.basis[:, rank:].any() and not found.singular_values[rank:].any()
    np.testing.assert_allclose(found.basis[:, :rank].T @ found.basis[:, :rank], np.eye(rank), atol=1e-12)
    assert (np.diff(found.singular_values) <= 0).all()


@every_solver
def test_low_rank_part_vanishes_exactly_where_it_must(solver):
    """L = 0 is optimal from λ_L = ‖stack of min(ω, λ_S/‖D_g‖) D_g‖_op on, and close to it a singular value that has
    not quite vanished costs the objective next to nothing: only the multiplier tells that it must."""
    problem = PROBLEMS["rank one, two contaminated"]
    weights = np.minimum(problem.omega, problem.penalty[1] / reference.norms(problem.stack))
    vanishing = np.linalg.norm(reference.flat(weights[:, None, None] * problem.stack), 2)
    for share in (1.2, 1.01, 1.001):
        gone = solve(problem._replace(penalty=(share * vanishing, problem.penalty[1])), solver)
        assert gone.status == Status.converged and int(gone.rank) == 0
        assert not gone.basis.any() and not gone.singular_values.any() and not gone.projector.any()
    kept = solve(problem._replace(penalty=(0.98 * vanishing, problem.penalty[1])), solver)
    assert kept.status == Status.converged and int(kept.rank) == 1


@every_solver
@pytest.mark.parametrize("problem_name", ["rank one, two contaminated", "a weight for each pair"])
def test_certificate_is_honest(solver, problem_name):
    """Stopped anywhere, the gap bounds the distance to the best objective known."""
    best = optimum(problem_name).objective
    gaps = []
    for rtol in (0.3, 0.03, 1e-3, 1e-5, 1e-7):
        coarse = type(solver)(**(vars(solver) | {"rtol": rtol}))
        found = solve(PROBLEMS[problem_name], coarse)
        assert found.status == Status.converged and 0 < found.optimality <= rtol
        assert -1e-12 <= (found.objective - best) / found.objective <= found.optimality + 1e-12
        gaps.append(float(found.optimality))
    assert gaps[0] > 1e3 * gaps[-1]  # it did stop early


def test_step_limit_is_reported_with_the_gap():
    name = "a weight for each pair"
    found = solve(PROBLEMS[name], ProximalGradient(max_steps=10))
    assert found.status == Status.max_steps_reached and int(found.steps) == 10
    assert found.optimality > 1e-9
    assert found.objective * (1 - found.optimality) <= optimum(name).objective


def test_too_few_columns_leave_the_gap_open():
    name = "rank two, one contaminated"
    best = optimum(name).objective
    found = solve(PROBLEMS[name], Factored(max_rank=1, max_steps=200))
    assert found.status == Status.rank_at_bound and int(found.steps) == 200
    assert found.basis.shape == (IN, 1) and found.objective > best * (1 + 1e-4)
    assert found.objective * (1 - found.optimality) <= best
    # What was found is kept: the best of rank one lies close to the best row space.
    assert int(found.rank) == 1
    row_space = reference.projector(optimum(name).low_rank, 1e-4)
    assert np.linalg.norm(found.basis.T @ row_space) > 0.9


def test_too_few_steps_are_not_taken_for_too_few_columns():
    found = solve(PROBLEMS["rank one, two contaminated"], Factored(max_rank=3, max_steps=10))
    assert found.status == Status.max_steps_reached


def test_warm_start():
    """Started at the solution, which takes the Huber weights too, and elsewhere: the same place, at once."""
    problem, solver = PROBLEMS["rank two, one contaminated"], SOLVERS["Factored"]
    clients = DenseClients.centred(jnp.asarray(problem.weights))
    penalty = Penalty(*(jnp.asarray(value) for value in problem.penalty))
    pair_weights = jnp.full((CLIENTS, CLIENTS), problem.pair_weights) * (1 - jnp.eye(CLIENTS))
    solve_from = jax.jit(lambda start: solver.solve(clients, penalty, pair_weights, start))
    elsewhere = jax.random.normal(jax.random.key(1), (IN, IN))
    cold = solve_from(Start(elsewhere, pair_weights))
    factor = cold.basis * jnp.sqrt(cold.singular_values)[None]
    warm = solve_from(Start(factor, residual_weights(cold.residual_norms, pair_weights, penalty)))
    assert warm.status == cold.status == Status.converged
    assert int(warm.steps) == 10 < int(cold.steps)  # one block
    np.testing.assert_allclose(warm.objective, cold.objective, rtol=2 * registry.RTOL)
    np.testing.assert_allclose(warm.projector, cold.projector, atol=1e-5)


@functools.cache
def gaps(small):
    """On the way to the optimum and at it, where matrices up to a width of `small` have their Gram formed."""

    def of(weights, penalty, pair_weights):
        clients = DenseClients.centred(weights)
        solve_to = lambda rtol: Factored(max_rank=3, rtol=rtol).solve(clients, Penalty(*penalty), pair_weights)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_factored, "SMALL", small)
            return jax.vmap(solve_to)(jnp.asarray([0.3, 1e-3, 1e-9])).optimality

    return jax.jit(of)


@pytest.mark.parametrize("problem_name", PROBLEMS)
def test_the_multiplier_is_measured_by_two_routes(problem_name):
    """Its Gram, and products with vectors alone."""
    problem = PROBLEMS[problem_name]
    penalty = tuple(jnp.asarray(value, jnp.float64) for value in problem.penalty)
    pair_weights = jnp.broadcast_to(jnp.asarray(problem.pair_weights), (CLIENTS, CLIENTS)) * (1 - jnp.eye(CLIENTS))
    narrow, wide = (gaps(small)(jnp.asarray(problem.weights), penalty, pair_weights) for small in (IN, 0))
    np.testing.assert_allclose(wide, narrow, rtol=1e-6, atol=1e-13)


def same(found, expected, *, turn=None, order=None, units=1.0):
    turn = np.eye(IN) if turn is None else turn
    order = np.arange(CLIENTS) if order is None else order
    assert found.status == expected.status == Status.converged
    assert int(found.rank) == int(expected.rank)
    np.testing.assert_allclose(found.objective, units**2 * expected.objective, rtol=2 * registry.RTOL)
    np.testing.assert_allclose(found.projector, turn @ expected.projector @ turn.T, atol=1e-5)
    norms = units * np.asarray(expected.residual_norms)[np.ix_(order, order)]
    np.testing.assert_allclose(found.residual_norms, norms, atol=1e-5 * norms.max())


@every_solver
class TestInvariance:
    """Of the program, on the problem with a table of pair weights."""

    problem = PROBLEMS["a weight for each pair"]

    def solve(self, solver, **changes):
        return solve(self.problem._replace(**changes), solver)

    def test_order_of_the_clients(self, solver):
        order = np.array([3, 0, 4, 1, 2])
        tables = self.problem.pair_weights[np.ix_(order, order)]
        found = self.solve(solver, weights=self.problem.weights[order], pair_weights=tables)
        same(found, self.solve(solver), order=order)

    def test_a_common_backbone(self, solver, key):
        backbone = 100 * np.asarray(jax.random.normal(key, (1, OUT, IN)))
        same(self.solve(solver, weights=self.problem.weights + backbone), self.solve(solver))

    def test_turning_the_inputs_turns_the_basis(self, solver, key):
        turn = np.linalg.qr(np.asarray(jax.random.normal(key, (IN, IN))))[0]
        found = self.solve(solver, weights=self.problem.weights @ turn.T)
        same(found, self.solve(solver), turn=turn)
        assert np.abs(found.projector - self.solve(solver).projector).max() > 0.1

    def test_turning_the_outputs(self, solver, key):
        turn = np.linalg.qr(np.asarray(jax.random.normal(key, (OUT, OUT))))[0]
        same(self.solve(solver, weights=turn @ self.problem.weights), self.solve(solver))

    def test_units(self, solver):
        low, sparse = self.problem.penalty
        found = self.solve(solver, weights=1e4 * self.problem.weights, penalty=(1e4 * low, 1e4 * sparse))
        same(found, self.solve(solver), units=1e4)

    def test_pair_weights_and_penalties_in_other_units(self, solver):
        low, sparse = self.problem.penalty
        found = self.solve(solver, pair_weights=100 * self.problem.pair_weights, penalty=(100 * low, 100 * sparse))
        once = self.solve(solver)
        np.testing.assert_allclose(found.objective, 100 * once.objective, rtol=2 * registry.RTOL)
        np.testing.assert_allclose(found.projector, once.projector, atol=1e-5)


def test_a_number_and_a_table_of_it_and_the_default_are_one(solutions):
    problem = PROBLEMS["rank one, two contaminated"]
    weights, penalty, solver = jnp.asarray(problem.weights), Penalty(*problem.penalty), SOLVERS["Factored"]
    expected = solutions("rank one, two contaminated", "Factored")
    # The diagonal of a table is not looked at.
    for given in (None, 0.2, np.full((CLIENTS, CLIENTS), 0.2), 0.2 + np.eye(CLIENTS)):
        found = decompose(weights, penalty, solver=solver, pair_weights=given)
        np.testing.assert_array_equal(found.basis, expected.basis)


def test_dual_by_transposition():
    """A shared left factor, as at the end of Remark 1: the same program on the transposes."""
    rng = np.random.default_rng(3)
    change = rng.normal(size=(IN, 1)) @ rng.normal(size=(CLIENTS, 1, OUT))
    change[4] = rng.normal(size=(IN, OUT))
    weights = rng.normal(size=(IN, OUT)) + change + 0.05 * rng.normal(size=(CLIENTS, IN, OUT))
    penalty = (0.2, 0.1)
    found = solve(Problem(jnp.asarray(weights).swapaxes(1, 2), penalty), SOLVERS["Factored"])
    best = reference.convex_program(np.stack([one.T for one in weights]), penalty, 1 / CLIENTS)
    np.testing.assert_allclose(found.objective, best.objective, rtol=1e-6)
    # The contrasts' common column space is the left factor, up to the noise and the contaminated client.
    left = np.linalg.svd(change[0])[0][:, :1]
    assert int(found.rank) == 1
    np.testing.assert_allclose(found.projector, left @ left.T, atol=0.05)


def test_a_step_of_ones_own_choice():
    """Any constant step up to 1/(2 max ω) goes to the same place."""
    name = "nobody contaminated"
    slow = ProximalGradient(step=0.4 / (2 * 0.2), rtol=registry.RTOL)
    found, usual = solve(PROBLEMS[name], slow), solve(PROBLEMS[name], SOLVERS["ProximalGradient"])
    assert found.status == Status.converged and int(found.steps) > int(usual.steps)
    np.testing.assert_allclose(found.objective, usual.objective, rtol=2 * registry.RTOL)


def test_first_steps_are_algorithm_1_to_the_digit():
    """Ten steps from zero give the objective of ten plain NumPy steps, S at its best for their L."""
    problem = Problem(PROBLEMS["rank one, two contaminated"].weights, (0.36, 0.15))
    found = solve(problem, ProximalGradient(max_steps=10))
    plain = reference.algorithm1(*problem, max_steps=10, rtol=None)
    residual = problem.stack - plain.low_rank
    best_sparse = reference.block_soft_threshold(residual, problem.penalty[1] * CLIENTS)
    value = reference.objective(problem.stack, plain.low_rank, best_sparse, problem.penalty, problem.omega)
    np.testing.assert_allclose(found.objective, value, rtol=1e-12)


@pytest.mark.parametrize(("count", "in_"), [(3, 1), (3, 12), (10, 2), (10, 130), (20, 1), (20, 12)])
def test_matrices_of_one_row(rng, dtype, count, in_):
    """Vectors: a client's products with itself are rounding of either sign, and no root of them may be NaN."""
    weights = jnp.asarray(rng.normal(size=(count, 1, in_)), dtype)
    penalty = Penalty(1.0, 0.5)
    found = decompose(weights, penalty, solver=Factored(rtol=1e-3, max_rank=min(in_, 20)))
    assert found.status == Status.converged and bool(jnp.isfinite(found.residual_norms).all())
    plain = decompose(weights, penalty, solver=ProximalGradient(accelerate=True, rtol=1e-3))
    np.testing.assert_allclose(found.objective, plain.objective, rtol=5e-3)


def test_a_step_that_is_too_long_is_no_fault_of_the_input(rng):
    weights = jnp.asarray(rng.normal(size=(8, 5, 6)))
    found = decompose(weights, Penalty(1.0, 0.1), solver=ProximalGradient(step=1e3, max_steps=2000))
    assert found.status == Status.diverged
