# SPDX-License-Identifier: Apache-2.0
# All-reduces scheduled on topologies: bounds, methods, search. Apart from the planner of steps, which uses it.
agpcs_library(flows FOLDER planner
  SOURCES
    ${CMAKE_CURRENT_BINARY_DIR}/flow_policy_text.cc
    balanced_forest.cc
    flow_bound.cc
    flow_environment.cc
    flow_episode.cc
    flow_forests.cc
    flow_greedy.cc
    flow_groups.cc
    flow_hamiltonian.cc
    flow_method.cc
    flow_orientation.cc
    flow_packing.cc
    flow_parameter_server.cc
    flow_part.cc
    flow_pendants.cc
    flow_policy.cc
    flow_ring.cc
    flow_rings.cc
    flow_search.cc
    flow_spread.cc
    flow_trees.cc
    hops.cc
    list_schedule.cc
    max_flow.cc
    perceptron.cc
    policy_text.cc
    split_switches.cc
    tree_packing.cc
  DEPS ir cost_model)
