# SPDX-License-Identifier: Apache-2.0
# agpcs-run, where there is an executor to run.
if(TARGET agpcs_runtime_torch)
  set(run_transports runtime)
  if(TARGET agpcs_runtime_gloo)
    list(APPEND run_transports runtime_gloo)
  endif()
  if(TARGET agpcs_runtime_nccl)
    list(APPEND run_transports runtime_nccl)
  endif()

  agpcs_library(tools_replan FOLDER tools
    SOURCES replan.cc
    DEPS ir cost_model planner runtime)

  agpcs_library(tools_run FOLDER tools
    SOURCES
      head_count.cc
      keeper_head.cc
      keeper_messages.cc
      machine.cc
      memory_kills.cc
      rank_process.cc
      run_checkpoint.cc
      run_command.cc
      run_elastic.cc
      run_job.cc
      run_keeper.cc
      run_last_resort.cc
      run_launch.cc
      run_local.cc
      run_options.cc
      run_rank.cc
      run_replan.cc
      run_report.cc
      run_save.cc
      run_start.cc
      run_trace.cc
      slow_products.cc
    DEPS tools_common tools_replan ir frontend cost_model runtime_torch ${run_transports}
    PRIVATE_DEPS CLI11::CLI11 Threads::Threads)
  target_compile_definitions(agpcs_tools_run PRIVATE
    $<$<TARGET_EXISTS:agpcs_runtime_gloo>:AGPCS_RUN_GLOO> $<$<TARGET_EXISTS:agpcs_runtime_nccl>:AGPCS_RUN_NCCL>)
  agpcs_tool(agpcs-run SOURCES agpcs_run.cc DEPS tools_run)
endif()
