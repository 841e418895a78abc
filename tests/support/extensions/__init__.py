"""What other packages would add to bitfront: modules that tests copy to where a user's own would lie."""
