"""Swinging a pendulum up and holding it there: its motion, an expert controller, and episodes to learn from.

The state is the angle θ from upright, in radians, and the angular velocity ω. A torque of at most 2 is too weak to lift
the pendulum directly, so it must be swung. An observation is (cos θ, sin θ, ω).
"""

from typing import NamedTuple

import numpy as np

TORQUE, SPEED = 2.0, 8.0  # the largest torque, and the largest angular velocity
UNIT = 100.0
"""Models read observations divided by this, so that the bins of the μ-law are at least 0.02 wide and each occurs often.
Without it, bins of sin θ would be 0.0002 wide near upright."""
GRAVITY, DT = 10.0, 0.05
STEPS = 200  # of a swing: 10 seconds


class Episodes(NamedTuple):
    """Episodes of control."""

    observations: np.ndarray  # cos θ, sin θ and ω, [episodes, steps, 3]
    torques: np.ndarray  # the torques that the controller asked for, [episodes, steps, 1]
    acted: np.ndarray  # the torques that acted, [episodes, steps, 1]
    rewards: np.ndarray  # the reward of each step, [episodes, steps]


def moved(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Return the states θ, ω, [n, 2], after 1/20 s with torques [n]: of a rod, θ'' = (3g/2) sin θ + 3 u."""
    theta, omega = state.T
    acceleration = 1.5 * GRAVITY * np.sin(theta) + 3 * np.clip(torque, -TORQUE, TORQUE)
    omega = np.clip(omega + DT * acceleration, -SPEED, SPEED)
    return np.stack([theta + DT * omega, omega], axis=1)


def observed(state: np.ndarray) -> np.ndarray:
    """Return the observations cos θ, sin θ, ω, [n, 3], of states θ, ω, [n, 2]."""
    theta, omega = state.T
    return np.stack([np.cos(theta), np.sin(theta), omega], axis=1)


def reward(state: np.ndarray, torque: np.ndarray) -> np.ndarray:
    """Return −(θ² + ω²/10 + u²/1000), with θ within ±π: 0 for a pendulum upright and at rest."""
    theta = (state[:, 0] + np.pi) % (2 * np.pi) - np.pi
    return -(theta**2 + 0.1 * state[:, 1] ** 2 + 0.001 * np.clip(torque, -TORQUE, TORQUE) ** 2)


def expert(observation: np.ndarray) -> np.ndarray:
    """Return the torques [n] that swing the pendulum up, by adding the missing energy in the direction of ω, and hold
    it, by linear feedback, for observations [n, 3]: integers, so that a model chooses one of five, not one of a
    thousand.
    """
    cos, sin, omega = observation.T
    theta = np.arctan2(sin, cos)
    missing = 0.5 * GRAVITY - (omega**2 / 6 + 0.5 * GRAVITY * cos)
    pumping = 1.5 * missing * np.where(omega < 0, -1.0, 1.0)
    holding = -(12 * theta + 3 * omega)
    return np.round(np.clip(np.where((cos > 0.9) & (abs(omega) < 3), holding, pumping), -TORQUE, TORQUE))


def starts(n: int, rng: np.random.Generator, *, angle: float = 1.0, speed: float = 1.0) -> np.ndarray:
    """Return n random initial states, at most `angle` from hanging down and at most `speed` fast."""
    return np.stack([np.pi + rng.uniform(-angle, angle, n), rng.uniform(-speed, speed, n)], axis=1)


def expert_episodes(n: int, *, seed: int, steps: int = 60, speed: float = 4.0, disturbance: float = 1.0) -> Episodes:
    """Return n episodes of the expert, which start at up to `speed`. The torque that acts is the expert's plus noise of
    standard deviation `disturbance`, rounded. So they also show what to do off the expert's path, and earlier torques
    do not predict the next: a clone would learn to repeat its own last one.
    """
    rng = np.random.default_rng(seed)
    state, seen, asked, acted, rewards = starts(n, rng, angle=np.pi, speed=speed), [], [], [], []
    for _ in range(steps):
        observation = observed(state)
        torque = expert(observation)
        seen.append(observation)
        rewards.append(reward(state, torque))
        disturbed = np.clip(np.round(torque + disturbance * rng.standard_normal(n)), -TORQUE, TORQUE)
        asked.append(torque[:, None])
        acted.append(disturbed[:, None])
        state = moved(state, disturbed)
    return Episodes(*(np.stack(steps, axis=1) for steps in (seen, asked, acted, rewards)))
