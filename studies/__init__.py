"""Run many candidates, remember all of them, choose one."""
