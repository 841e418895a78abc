"""What a terminal shows: tables that fit its width, and the sentences around them."""
