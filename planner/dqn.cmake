# SPDX-License-Identifier: Apache-2.0
# Training with LibTorch: a library, and the plugin that programs load when they train (dqn_plugin.h).
if(AGPCS_HAS_TORCH)
  agpcs_library(planner_dqn FOLDER planner
    SOURCES dqn_trainer.cc flow_trainer.cc torch_products.cc
    DEPS ir planner flows
    PRIVATE_DEPS Torch::Torch)

  add_library(agpcs_dqn_plugin MODULE dqn_factory.cc)
  agpcs_target_defaults(agpcs_dqn_plugin VISIBILITY PRIVATE DEPS planner_dqn)
  # In the build folder it lies to the programs as it does where it is installed.
  set_target_properties(agpcs_dqn_plugin PROPERTIES
    OUTPUT_NAME agpcs_dqn LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib/agpcs")
  target_link_options(agpcs_dqn_plugin PRIVATE -Wl,--exclude-libs,ALL)
  install(TARGETS agpcs_dqn_plugin LIBRARY DESTINATION lib/agpcs COMPONENT commands)
endif()
