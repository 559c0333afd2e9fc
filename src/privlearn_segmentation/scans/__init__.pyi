from privlearn_segmentation.scans.grid import Grid as Grid
from privlearn_segmentation.scans.grid import prepared as prepared
from privlearn_segmentation.scans.nifti import Scan as Scan
from privlearn_segmentation.scans.nifti import read_mask as read_mask
from privlearn_segmentation.scans.nifti import read_scan as read_scan
from privlearn_segmentation.scans.nifti import write_mask as write_mask
from privlearn_segmentation.scans.windows import segmented as segmented
