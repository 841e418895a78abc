"""What each group may take on a target, the user's rules, and assignments as codes and arrays. Knows no cost."""
